"""Durable storage of a board: its boot number, its clients' private memory, and replies without a receipt.

One small file per client commits both its memory and its replies, so that they survive a crash together.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.topics import check_name

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredReply:
    """A finished reply on disk.

    Attributes:
        task: fingerprint of the task that it answers.
        file: name below the client's folder.
        head: length in bytes of the head of soft labels.
    """

    run: str
    client: int
    round: int
    exchange: int
    task: str
    file: str
    digest: str
    size: int
    head: int = 0


@dataclass(frozen=True)
class Drafts:
    """The paths to which a worker writes before the commit."""

    reply: Path
    memory: Path


class AgentStore:
    """The state folder of an agent; only one agent at a time can use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = lock_folder(folder)

    def release(self) -> None:
        """Unlock the folder for other processes."""
        self._lock.close()

    def next_boot(self) -> int:
        """Return a number larger than that of every earlier start, also on a board whose clock starts in 1970."""
        path = self.folder / "boot"
        try:
            last = int(path.read_text())
        except (FileNotFoundError, ValueError):
            last = 0
        boot = max(last + 1, int(time.time()))
        write_durably(path, str(boot))
        return boot

    def end_run(self, run: str) -> None:
        """Delete everything of a finished run except the private memory.

        An interrupted run keeps its replies, because a resumed coordinator may ask for them.
        """
        home = self.folder / "runs" / check_name(run, "run")
        for reply in home.glob("clients/*/reply-*"):
            reply.unlink(missing_ok=True)
        for leftover in (home / "patches", home / "drafts"):
            shutil.rmtree(leftover, ignore_errors=True)

    def open_run(self, run: RunMessage) -> RunStore:
        """Return the store of a run; delete patches and drafts of earlier runs, and keep their private memory."""
        for old in (self.folder / "runs").glob("*"):
            if old.name != run.run:
                shutil.rmtree(old / "patches", ignore_errors=True)
                shutil.rmtree(old / "drafts", ignore_errors=True)
        return RunStore(self.folder / "runs" / run.run, run)


class RunStore:
    """One run on this board."""

    def __init__(self, folder: Path, run: RunMessage) -> None:
        self.folder = folder
        self.run = run
        self.patches = folder / "patches"
        self.message = folder / "run.json"
        shutil.rmtree(self.patches, ignore_errors=True)  # the broker retains them; a power cut may have damaged these
        self.patches.mkdir(parents=True)
        write_durably(self.message, run.model_dump_json())

    def patch(self, digest: str) -> Path:
        """Return the path of a patch, whether it exists or not."""
        return self.patches / digest

    def keep_patches(self, digests: set[str]) -> None:
        """Delete all other patches, complete or not."""
        for path in self.patches.iterdir():
            if path.name not in digests and path.name.partition(".")[0] not in digests:
                path.unlink(missing_ok=True)

    @property
    def limit(self) -> Path:
        """Path of the memory limit of this run's training processes; the file may not exist."""
        return self.folder / "limit"

    def drafts(self, client: int, round: int, exchange: int) -> Drafts:
        """Return the paths to which a worker writes."""
        folder = self.folder / "drafts"
        folder.mkdir(exist_ok=True)
        stem = f"{client}-{round}.{exchange}"
        return Drafts(folder / f"{stem}.reply", folder / f"{stem}.memory")

    def commit(self, reply: StoredReply, drafts: Drafts, since: ExchangeId | None, *, memory: bool) -> StoredReply:
        """Commit a reply together with the client's private memory after it.

        Args:
            since: the client's last reply that counts; the client started from the memory after it.
            memory: whether the drafts hold new private memory.
        """
        home = self._home(reply.client)
        home.mkdir(parents=True, exist_ok=True)
        drafts.reply.replace(home / reply.file)
        before = self._read(reply.client)
        after = _memory_file(before, since)
        if memory:
            after = f"memory-{reply.round}.{reply.exchange}-{reply.digest[:16]}"
            drafts.memory.replace(home / after)
        record = _record_reply(before, reply, since, after)
        write_durably(home / "committed.json", json.dumps(record))
        self._tidy(home, record)
        return reply

    def reply(self, client: int, round: int, exchange: int, task: str) -> StoredReply | None:
        """Return the committed reply to exactly this task; None if there is none."""
        for fields in self._read(client)["replies"]:
            stored = StoredReply(**fields)
            if (stored.round, stored.exchange, stored.task) == (round, exchange, task):
                return stored
        return None

    def blob(self, reply: StoredReply) -> Blob:
        """Return the bytes of a reply."""
        return Blob(self._home(reply.client) / reply.file, reply.digest, reply.size, reply.head)

    def memory(self, client: int, since: ExchangeId | None) -> Path | None:
        """Return the client's private memory as it was after the reply ``since``; None if it had none."""
        record = self._read(client)
        if since is not None and list(since) not in [version[:2] for version in record["memories"]]:
            log.warning(
                "client %d: its private memory after round %d is missing; it starts without memory", client, since[0]
            )
        name = _memory_file(record, since)
        return self._home(client) / name if name else None

    def _home(self, client: int) -> Path:
        return self.folder / "clients" / str(client)

    def _read(self, client: int) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads((self._home(client) / "committed.json").read_text())
        except FileNotFoundError:
            return {"replies": [], "memories": [], "before": None}
        return record

    def _tidy(self, home: Path, record: dict[str, Any]) -> None:
        keep = {"committed.json", *(r["file"] for r in record["replies"]), *(m[2] for m in record["memories"])}
        for path in home.iterdir():
            if path.name not in keep:
                path.unlink()


@dataclass(frozen=True)
class KeptMemory:
    """The newest private memory of a client in a run, as it is after its reply of ``round``."""

    run: str
    algorithm: str
    client: int
    round: int
    file: Path


Damaged = Callable[[RunFolderError], None]
"""Receives the error of each file that cannot be read."""


def _raise(error: RunFolderError) -> None:
    raise error


def kept_memories(folder: Path, damaged: Damaged = _raise) -> list[KeptMemory]:
    """List the private memories in an agent's state folder; the agent may be running.

    Args:
        damaged: receives an error for each file that cannot be read and is left out; by default it is raised.
    """
    homes = [home for home in sorted((folder / "runs").iterdir()) if home.is_dir()]
    return [memory for home in homes for memory in _list_run(home, damaged)]


def _list_run(home: Path, damaged: Damaged) -> Iterator[KeptMemory]:
    try:
        run = RunMessage.model_validate_json((home / "run.json").read_bytes())
    except (OSError, ValueError):
        return damaged(RunFolderError(f"{home / 'run.json'}: cannot be read; is this the state folder of an agent?"))
    algorithm = str(run.experiment.get("algorithm", {}).get("name", ""))
    files = [file for file in home.glob("clients/*/committed.json") if file.parent.name.isdigit()]
    for file in sorted(files, key=lambda path: int(path.parent.name)):
        client = file.parent.name
        try:
            memories = [m for m in json.loads(file.read_text())["memories"] if m[2]]
            for number, _, name in memories[-1:]:
                yield KeptMemory(run.run, algorithm, int(client), int(number), file.parent / name)
        except (OSError, ValueError, TypeError, LookupError):
            damaged(RunFolderError(f"{file}: cannot be read, so the private memory of client {client} is unknown"))


def _memory_file(record: Mapping[str, Any], since: ExchangeId | None) -> str | None:
    """Return the file of the memory after the reply ``since``."""
    return next((file for *version, file in record["memories"] if since is not None and version == list(since)), None)


def _record_reply(
    record: Mapping[str, Any], reply: StoredReply, since: ExchangeId | None, after: str | None
) -> dict[str, Any]:
    """Return the content of ``committed.json`` after ``reply``, given the content before it.

    It keeps the memories of the reply's round and the one from which that round started: the coordinator may restart
    the round.
    """
    start = _as_list(record["before"] if since is not None and since[0] == reply.round else since)
    exchange = [reply.round, reply.exchange]
    memories = [m for m in record["memories"] if m[:2] != exchange and (m[0] == reply.round or m[:2] == start)]
    replies = [r for r in record["replies"] if (r["round"], r["exchange"]) >= (reply.round - 1, 0)]
    return {
        "replies": [r for r in replies if r["file"] != reply.file] + [asdict(reply)],
        "memories": [*memories, [*exchange, after]],
        "before": start,
    }


def _as_list(exchange: Sequence[int] | None) -> list[int] | None:
    """Return an exchange as JSON stores it."""
    return None if exchange is None else list(exchange)
