"""Durable storage of a board: its boot number, its clients' private memory, and replies without a receipt.

One small file per client commits both its private memory and its replies, so that they survive a crash together.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fedquilt_client.records import (
    COMMITTED,
    ClientRecord,
    StoredMemory,
    StoredReply,
    StoredSum,
    find_replies,
    is_reply,
    name_memory,
    read_record,
    write_record,
)
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.topics import check_name

log = logging.getLogger(__name__)


_REMEMBERED: Final = 10_000
"""Clients without private memory whose records a run store holds in memory."""
LEDGERS: Final = "privacy"
"""Name of the folder of the privacy ledgers, below an agent's state folder."""
SUMS: Final = "sums"
"""Name of the folder of the partial sums and their groups, in that of a run."""
LARGEST_BOOT: Final = 1 << 62
"""A stored boot number from here on is damaged; the protocol's limit is twice as large."""


@dataclass(frozen=True)
class Drafts:
    """The paths to which a worker writes before the commit."""

    reply: Path
    memory: Path


class AgentStore:
    """The state folder of an agent; only one agent at a time can use it."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder.

        Raises:
            FolderInUseError: another process uses it.
        """
        self.folder = folder
        self._lock = lock_folder(folder)

    @property
    def samples(self) -> Path:
        """Folder of the samples that runs delivered; files stay there for later runs."""
        return self.folder / "samples"

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
        boot = max(last + 1 if 0 <= last < LARGEST_BOOT else 0, int(time.time()))  # a damaged file counts as absent
        write_durably(path, str(boot))
        return boot

    def end_run(self, run: str) -> None:
        """Delete everything of a finished run except the private memory.

        An interrupted run keeps its replies, because a resumed coordinator may ask for them.
        """
        home = self.folder / "runs" / check_name(run, "run")
        for reply in home.glob("clients/*/reply-*"):
            reply.unlink(missing_ok=True)
        for leftover in (home / "patches", home / "drafts", home / SUMS):
            shutil.rmtree(leftover, ignore_errors=True)

    def open_run(self, run: RunMessage) -> RunStore:
        """Return the store of a run; delete all patches and drafts, and keep the private memory of each run."""
        for old in (self.folder / "runs").glob("*"):
            if old.name != run.run:
                shutil.rmtree(old / "patches", ignore_errors=True)
                shutil.rmtree(old / "drafts", ignore_errors=True)
        return RunStore(self.folder / "runs" / run.run, run)


class RunStore:
    """One run on this board.

    Attributes:
        run: the coordinator's message about it.
        patches: folder of the patches.
        sums: folder of the partial sums and their groups.
        message: path of ``run``, as JSON.
        limit: path of the memory limit of the training processes; the file may not exist.
        spare: path of a reply that no record names, for the next one to write over; the file may not exist.
        ledgers: folder of what all runs have spent of the clients' privacy.
    """

    def __init__(self, folder: Path, run: RunMessage) -> None:
        self.folder = folder
        self.run = run
        self.patches = folder / "patches"
        self.sums = folder / SUMS
        self.message = folder / "run.json"
        self.limit = folder / "limit"
        self.ledgers = folder.parents[1] / LEDGERS
        self._drafts = folder / "drafts"
        self.spare = self._drafts / "spare"
        self._clients = folder / "clients"
        self._records = dict[int, ClientRecord]()
        self._cleaned = set[int]()
        shutil.rmtree(self.patches, ignore_errors=True)  # the broker retains them; a power cut may have damaged these
        shutil.rmtree(self._drafts, ignore_errors=True)
        self.patches.mkdir(parents=True)
        self._drafts.mkdir()
        write_durably(self.message, run.model_dump_json())

    def patch(self, digest: str) -> Path:
        """Return the path of a patch, whether it exists or not."""
        return self.patches / digest

    def keep_patches(self, digests: set[str]) -> None:
        """Delete all other patches, complete or not."""
        for path in self.patches.iterdir():
            if path.name not in digests and path.name.partition(".")[0] not in digests:
                path.unlink(missing_ok=True)

    def drafts(self, client: int, round: int, exchange: int) -> Drafts:
        """Return the paths to which a worker writes."""
        stem = f"{client}-{round}.{exchange}"
        return Drafts(self._drafts / f"{stem}.reply", self._drafts / f"{stem}.memory")

    def commit(
        self, reply: StoredReply, drafts: Drafts, since: ExchangeId | None, *, memory: str | None
    ) -> StoredReply:
        """Commit a reply together with the client's private memory after it; durably if the client has any.

        Args:
            since: the client's last reply that counts; the client started from the memory after it.
            memory: SHA-256 of the draft of new private memory; None if the memory is unchanged.

        Raises:
            RunFolderError: the client's record is damaged.
        """
        home, before = self._home(reply.client), self._read(reply.client)
        exchange = reply.round, reply.exchange
        after = replace(before.memory_after(since) or StoredMemory(exchange), after=exchange)
        with self._noting_failure(reply.client):
            home.mkdir(parents=True, exist_ok=True)
            drafts.reply.replace(home / reply.file)
            if memory is not None:
                name = name_memory(exchange, reply.digest)
                drafts.memory.replace(home / name)
                after = StoredMemory(exchange, name, memory)
            self._write(reply.client, before, before.add(reply, since, after))
        return reply

    def reply(self, client: int, round: int, exchange: int, task: str) -> StoredReply | None:
        """Return the committed reply to exactly this task; None if there is none.

        Raises:
            RunFolderError: the client's record is damaged.
        """
        for stored in self._read(client).replies:
            if (stored.round, stored.exchange, stored.task) == (round, exchange, task):
                return stored
        return None

    def blob(self, reply: StoredReply) -> Blob:
        """Return the bytes of a reply, or of a partial sum."""
        folder = self.sums if isinstance(reply, StoredSum) else self._home(reply.client)
        return Blob(folder / reply.file, reply.digest, reply.size, reply.head)

    def forget(self, reply: StoredReply) -> None:
        """Delete a damaged reply.

        Training it again, from the memory that its task names, gives the same arrays and memory; only the times in its
        header differ.

        Raises:
            RunFolderError: the client's record is damaged.
        """
        before = self._read(reply.client)
        with self._noting_failure(reply.client):
            self._write(reply.client, before, before.without(reply))

    def memory(self, client: int, since: ExchangeId | None) -> CheckedFile | None:
        """Return the client's private memory as it was after the reply ``since``; None if it had none.

        Raises:
            RunFolderError: the client's record is damaged, or does not name a memory that is there.
        """
        memory, home = self._read(client).memory_after(since), self._home(client)
        if since is not None and memory is None:
            for path in home.glob(f"memory-{since[0]}.{since[1]}-*"):
                raise RunFolderError(f"{home / COMMITTED} is missing or too old: it does not name {path.name}. "
                                     f"{_memory_advice(home)}")  # fmt: skip
            log.warning(
                "client %d: its private memory after round %d is missing; it starts without memory", client, since[0]
            )
        if memory is None or memory.file is None:
            return None
        return CheckedFile(home / memory.file, memory.digest)

    def _home(self, client: int) -> Path:
        return self._clients / str(client)

    def _read(self, client: int) -> ClientRecord:
        """Return the client's record. That of a client without private memory is read from the disk once.

        Raises:
            RunFolderError: as ``_read_from_disk`` does.
        """
        known = self._records.get(client)
        return self._read_from_disk(client) if known is None else known

    def _read_from_disk(self, client: int) -> ClientRecord:
        """Return the client's record; a damaged one of a client without private memory is deleted.

        Raises:
            RunFolderError: the record cannot be read, or it is damaged and the client has private memory that it names.
        """
        home = self._home(client)
        with report_disk_errors(home):
            if (home / COMMITTED).exists():
                try:
                    return read_record(home)
                except RunFolderError as error:
                    if any(home.glob("memory-*")):
                        raise RunFolderError(f"{error}. {_memory_advice(home)}") from None
                    log.warning("%s: deleting it, because client %d has no private memory", error, client)
                (home / COMMITTED).unlink()
            record = find_replies(self.run.run, client, home)
            if any(home.glob("memory-*")):  # the owner may restore the record's file
                return record
            return self._remember(client, record)

    def _remember(self, client: int, record: ClientRecord) -> ClientRecord:
        """Hold the record of a client that has none on the disk; too many replace the one that is held longest."""
        self._records.pop(client, None)
        self._records[client] = record
        if len(self._records) > _REMEMBERED:
            del self._records[next(iter(self._records))]
        return record

    def _write(self, client: int, before: ClientRecord, after: ClientRecord) -> None:
        """Replace a client's record, then delete the files that the new one no longer names.

        A client without private memory needs no record on the disk: the names of its replies' files are enough.
        """
        home, durable = self._home(client), before.has_memory or after.has_memory
        self._records.pop(client, None)
        if durable or (home / COMMITTED).exists():
            write_record(home, after, durable=durable)
        else:
            self._remember(client, after)
        for name in self._present(client, before) - after.files:
            self._delete(home / name)

    def _delete(self, path: Path) -> None:
        """Delete a file; a reply becomes the spare one, because ext4 takes long to make a file after many deletions."""
        if is_reply(path.name) and not self.spare.exists():
            with suppress(FileNotFoundError):
                path.replace(self.spare)
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def _noting_failure(self, client: int) -> Iterator[None]:
        """If a step fails, the next change of the client's folder also deletes what this one leaves."""
        try:
            yield
        except BaseException:
            self._cleaned.discard(client)
            raise

    def _present(self, client: int, record: ClientRecord) -> set[str]:
        """Return the files in a client's folder: those of its record, and at first any others that a crash left."""
        if client in self._cleaned:
            return record.files
        self._cleaned.add(client)
        return {path.name for path in self._home(client).iterdir()}


def _memory_advice(home: Path) -> str:
    return (
        f"It names the private memory of client {home.name}: restore the file from a backup, or delete the folder "
        f"{home}; then the client starts without memory"
    )


@dataclass(frozen=True)
class KeptMemory:
    """The newest private memory of a client in a run, as it is after its reply of ``round``."""

    run: str
    algorithm: str
    client: int
    round: int
    file: Path
    digest: str | None


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
    clients = [file.parent for file in home.glob(f"clients/*/{COMMITTED}") if file.parent.name.isdigit()]
    for client in sorted(clients, key=lambda path: int(path.name)):
        try:
            with report_disk_errors(client):
                newest = [memory for memory in read_record(client).memories if memory.file is not None][-1:]
        except RunFolderError as error:
            damaged(RunFolderError(f"{error}; so the private memory of client {client.name} is unknown"))
            continue
        for memory in newest:
            file = client / str(memory.file)
            yield KeptMemory(run.run, algorithm, int(client.name), memory.after[0], file, memory.digest)
    return None
