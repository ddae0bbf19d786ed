"""Download the samples of this board's clients from the coordinator, once: they stay on disk, named by digest.

The agent requests a few chunks at a time, so a slow link is never flooded, and the coordinator keeps no state. An
interrupted download continues at the first chunk that is missing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import psutil
from rich.filesize import decimal

from fedquilt_client.downloads import DISK_RESERVE
from fedquilt_common.errors import DamagedTransferError
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.training_jobs import CheckedFile, JobData
from fedquilt_common.wire.chunks import Assembly, ChunkHeader
from fedquilt_common.wire.data_messages import DataFile, DataMessage, DataRequest

log = logging.getLogger(__name__)

WINDOW: Final = 16
"""Chunks that are requested at a time."""
FIRST_PAUSE: Final = 3.0
"""Seconds without a chunk before it is requested again; doubled with each repetition."""
LONGEST_PAUSE: Final = 120.0
ATTEMPTS: Final = 3
"""Downloads with a wrong digest before the board gives up."""
_SUFFIX: Final = ".safetensors"

SendRequest = Callable[[DataRequest], None]
StartFetch = Callable[[DataFile, Path], None]


class DataDownloads:
    """The samples of one run that this board needs: at most one file is in transfer.

    Args:
        folder: where samples stay, including those of other runs.
        run: identifier of the run.
        data: the run's samples.
        clients: the clients that this board hosts.
        send: publishes a request.
        fetch: downloads a file that has an address, and calls ``finish_fetch`` later.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        data: DataMessage,
        clients: Iterable[int],
        send: SendRequest,
        fetch: StartFetch = lambda _file, _path: None,
    ) -> None:
        self._folder = folder
        self._run = run
        self._data = data
        self._send = send
        self._fetch = fetch
        shards = [data.shards[client] for client in clients if client < len(data.shards)]
        shared = [file for file in (data.public, data.test) if file is not None]
        self._files = {file.digest: file for file in [*shards, *shared]}
        self._assembly: Assembly | None = None
        self._target: DataFile | None = None
        self._kept: tuple[int, int] | None = None
        self._requested = 0
        self._asked_at, self._pause = 0.0, FIRST_PAUSE
        self._damages: dict[str, int] = {}
        self._problems: dict[str, str] = {}

    def path(self, file: DataFile) -> Path:
        """Return where a file's samples are, whether they have arrived or not."""
        return self._folder / f"{file.digest}{_SUFFIX}"

    def has(self, client: int) -> bool:
        """Return whether all samples that a client needs have arrived."""
        return all(self.path(file).exists() for file in self._needs(client))

    def _needs(self, client: int) -> list[DataFile]:
        shards = self._data.shards[client : client + 1]
        return [*shards, *(file for file in (self._data.public, self._data.test) if file is not None)]

    def problem(self, client: int) -> str:
        """Return why a client's samples cannot be obtained; empty if they are here or on their way."""
        return next((self._problems[file.digest] for file in self._needs(client) if file.digest in self._problems), "")

    def job_data(self, client: int) -> JobData:
        """Return the files of a client whose samples have arrived."""
        public, test = (self._checked(file) for file in (self._data.public, self._data.test))
        shard = self._data.shards[client] if client < len(self._data.shards) else None
        return JobData(shard=self._checked(shard), public=public, test=test)

    def _checked(self, file: DataFile | None) -> CheckedFile | None:
        return None if file is None else CheckedFile(self.path(file), file.digest)

    def start(self) -> None:
        """Request the first missing samples, if none are in transfer."""
        while self._target is None:
            missing = [file for file in self._files.values() if not self.path(file).exists()]
            wanted = [file for file in missing if file.digest not in self._problems]
            if not wanted:
                return
            if self._make_room(wanted[0]):
                self._begin(wanted[0], len(self._files) - len(missing) + 1)

    def _begin(self, file: DataFile, number: int) -> None:
        log.info("downloading samples: file %d of %d, %s", number, len(self._files), decimal(file.size))
        self._target, self._pause = file, FIRST_PAUSE
        if file.url is not None:
            self._fetch(file, self.path(file))
        else:
            self._request(self._resume(file))

    def _make_room(self, file: DataFile) -> bool:
        """Return whether a file fits on the disk, after samples of other runs gave way; else note the problem."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        need = file.size - self._stored_size(file) + DISK_RESERVE - psutil.disk_usage(str(self._folder)).free
        unused = self._find_unused()
        if need > sum(path.stat().st_size for path in unused):
            self._problems[file.digest] = (
                f"samples of {decimal(file.size)} do not fit into {self._folder}, where fedquilt keeps "
                f"{decimal(DISK_RESERVE)} free: {decimal(need)} are missing. Free disk space; the board tries again "
                "with the next exchange, or when you start the agent again"
            )
            return False
        while need > 0:
            log.warning("the disk is short: deleting %s, samples of an earlier run", unused[0])
            need -= unused[0].stat().st_size
            unused.pop(0).unlink()
        return True

    def _stored_size(self, file: DataFile) -> int:
        """Return how many bytes of a file an interrupted download has left on the disk."""
        parts = [path.stat() for path in self._folder.glob(f"{file.digest}*.part")]
        return sum(min(part.st_size, 512 * part.st_blocks) for part in parts)  # a missing chunk takes no block

    def _find_unused(self) -> list[Path]:
        """Return the files of other runs, the oldest first."""
        own = {file.digest for file in self._files.values()}
        others = [path for path in self._folder.iterdir() if path.is_file() and path.name.split(".")[0] not in own]
        return sorted(others, key=lambda path: path.stat().st_mtime)

    def _resume(self, file: DataFile) -> int:
        """Return the first chunk to request: after those that an earlier process stored."""
        self._kept = None
        with contextlib.suppress(OSError, ValueError):
            count, chunks = (int(word) for word in self._part(file, ".chunks").read_text().split())
            if 0 < chunks < count and self._part(file, ".part").is_file():
                self._kept = count, chunks
        return self._kept[1] if self._kept else 0

    def _part(self, file: DataFile, suffix: str) -> Path:
        return self.path(file).with_suffix(suffix)

    def _note_progress(self, assembly: Assembly, file: DataFile, chunks: int) -> None:
        """Note how many of the first chunks are on disk, so that a restarted agent continues there."""
        write_atomically(self._part(file, ".chunks"), f"{assembly.count} {chunks}")

    def _request(self, first: int) -> None:
        assert self._target is not None  # noqa: S101 - callers check it
        self._requested, self._asked_at = first + WINDOW, time.monotonic()
        self._send(DataRequest(run=self._run, digest=self._target.digest, first=first, count=WINDOW))

    def take(self, header_bytes: bytes, payload: bytes) -> bool:
        """Store a chunk.

        Returns:
            Whether it was the last one of a file, which is complete now, or damaged.

        Raises:
            PayloadError: the message is not a chunk of the file that was requested.
            OSError: the disk is full or broken.
        """
        header = ChunkHeader.decode(header_bytes)
        if self._target is None or header.digest != self._target.digest:
            return False  # a file that has arrived already
        assembly = self._assembly_for(header, self._target)
        self._asked_at, self._pause = time.monotonic(), FIRST_PAUSE
        if assembly.add(header, payload):
            self._finish(assembly, self._target)
            return True
        missing = assembly.find_first_missing()
        if missing >= self._requested:
            self._note_progress(assembly, self._target, missing)
            self._request(missing)
        return False

    def _assembly_for(self, header: ChunkHeader, file: DataFile) -> Assembly:
        if self._assembly is None or not self._assembly.fits(header):
            kept = self._kept[1] if self._kept is not None and self._kept[0] == header.count else 0
            self._kept = None
            self._assembly = Assembly(self._part(file, ".part"), header, file.size, kept, durable=True)
        return self._assembly

    def _finish(self, assembly: Assembly, file: DataFile) -> None:
        self._assembly = self._target = None
        self._part(file, ".chunks").unlink(missing_ok=True)
        try:
            assembly.finish(self.path(file))
        except DamagedTransferError:
            self._note_damage(file)
        if all(self.path(each).exists() for each in self._files.values()):
            log.info("all samples of this board's clients are here")
        self.start()

    def _note_damage(self, file: DataFile) -> None:
        self._damages[file.digest] = self._damages.get(file.digest, 0) + 1
        if self._damages[file.digest] >= ATTEMPTS:
            self._problems[file.digest] = (
                f"samples arrived {ATTEMPTS} times with another SHA-256 than {file.digest[:12]}...: the coordinator's "
                "file or this board's disk is damaged. Start the coordinator again, and check the disk"
            )

    def finish_fetch(self, file: DataFile, problem: str) -> None:
        """Continue after a download from an address.

        Args:
            file: the file that is complete and checked.
            problem: why it is not; empty if it is.
        """
        if self._target is file:
            self._target = None
            if problem:
                log.warning("%s", problem)
                self._problems[file.digest] = problem
            self.start()

    def retry(self) -> None:
        """Try again after a problem, which may be over."""
        if self._problems:
            self._problems.clear()
            self.start()

    def fetch_again(self, path: Path) -> bool:
        """Delete a damaged file and download it again; returns whether the path is one of this run's samples."""
        found = [file for file in self._files.values() if self.path(file) == path]
        for file in found:
            path.unlink(missing_ok=True)
            self._note_damage(file)
        self.start()
        return bool(found)

    def repair(self) -> None:
        """Request chunks again that did not arrive for a while; called regularly while connected."""
        if self._target is None or self._target.url is not None or time.monotonic() - self._asked_at < self._pause:
            return
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._request(self._assembly.find_first_missing() if self._assembly is not None else 0)

    def close(self) -> None:
        """Stop the transfer; its chunks stay on disk."""
        self._assembly = self._target = None
