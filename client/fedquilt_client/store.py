"""Durable storage of a board: its boot number, its clients' private memory, and replies without a receipt.

One small file per client commits both its private memory and its replies, so that they survive a crash together.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fedquilt_client.records import (
    COMMITTED,
    ClientRecord,
    JointReply,
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
from fedquilt_common.files.intact import IntactFiles
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.training_jobs import CheckedFile, Job
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.topics import check_name

log = logging.getLogger(__name__)


_REMEMBERED: Final = 10_000
"""Clients without private memory whose records a run store holds in memory."""
LEDGERS: Final = "privacy"
"""Name of the folder of the privacy ledgers, below an agent's state folder."""
DRAFTS: Final = "drafts"
"""Name of the folder of what is being written and of the spare file, in that of a run."""
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
        """Delete the drafts and spare files, which only this process could use; then unlock the folder for others."""
        with suppress(OSError):  # the next start deletes what is left
            for draft in self.folder.glob(f"runs/*/{DRAFTS}/*"):
                draft.unlink()
        self._lock.close()

    def next_boot(self) -> int:
        """Return a number larger than that of every earlier start, even on a board whose clock starts in 1970."""
        path = self.folder / "boot"
        try:
            last = int(path.read_text())
        except (FileNotFoundError, ValueError):
            last = 0
        boot = max(last + 1 if 0 <= last < LARGEST_BOOT else 0, int(time.time()))  # a damaged file counts as absent
        write_durably(path, str(boot))
        return boot

    def end_run(self, run: str) -> None:
        """Delete a finished run. If clients have private memory, that and what describes it stays.

        An interrupted run keeps its replies, because a resumed coordinator may ask for them.
        """
        home = self.folder / "runs" / check_name(run, "run")
        for reply in home.glob("clients/*/reply-*"):
            reply.unlink(missing_ok=True)
        has_memory = any(home.glob("clients/*/memory-*"))
        for leftover in (home / "patches", home / DRAFTS, home / SUMS) if has_memory else (home,):
            shutil.rmtree(leftover, ignore_errors=True)

    def open_run(self, run: RunMessage) -> RunStore:
        """Return the store of a run; delete all patches and drafts, and keep the private memory of each run."""
        for old in (self.folder / "runs").glob("*"):
            if old.name != run.run:
                shutil.rmtree(old / "patches", ignore_errors=True)
                shutil.rmtree(old / DRAFTS, ignore_errors=True)
        return RunStore(self.folder / "runs" / run.run, run)


class RunStore:
    """One run on this board.

    Attributes:
        run: the coordinator's message about it.
        patches: folder of the patches.
        sums: folder of the partial sums and their groups.
        message: path of ``run``, as JSON.
        limit: path of the memory limit of the training processes; the file may not exist.
        intact: patches that were found intact a moment ago.
        spare: path of a reply that no record names, for the next one to write over; the file may not exist.
        ledgers: folder of what all runs have spent of the clients' privacy.
    """

    def __init__(self, folder: Path, run: RunMessage) -> None:
        self.folder = folder
        self.run = run
        self.patches = folder / "patches"
        self.intact = IntactFiles()
        self.sums = folder / SUMS
        self.message = folder / "run.json"
        self.limit = folder / "limit"
        self.ledgers = folder.parents[1] / LEDGERS
        self._drafts = folder / DRAFTS
        self.spare = self._drafts / "spare"
        self._clients = folder / "clients"
        self._records = dict[int, ClientRecord]()
        self._cleaned = set[int]()
        self._joint = dict[tuple[int, str], JointReply]()
        self._kept = folder / "keeps-memory"
        self._keeps_memory = _read_flag(self._kept)
        self._missing = dict[int, int]()
        shutil.rmtree(self.patches, ignore_errors=True)  # the broker retains them; a power cut may have damaged these
        shutil.rmtree(self._drafts, ignore_errors=True)
        self.patches.mkdir(parents=True)
        self._drafts.mkdir(exist_ok=True)  # a cancelled process may just have made it again
        write_durably(self.message, run.model_dump_json())

    def patch(self, digest: str) -> Path:
        """Return the path of a patch, whether it exists or not."""
        return self.patches / digest

    def keep_patches(self, digests: set[str]) -> None:
        """Delete all other patches, complete or not."""
        for path in self.patches.iterdir():
            if path.name not in digests and path.name.partition(".")[0] not in digests:
                path.unlink(missing_ok=True)

    def drafts(self, number: int) -> Drafts:
        """Return the paths to which a worker writes, by the job's number; another job never writes there."""
        return Drafts(self._drafts / f"{number}.reply", self._drafts / f"{number}.memory")

    def commit(
        self, reply: StoredReply, drafts: Drafts, since: ExchangeId | None, *, memory: str | None
    ) -> StoredReply:
        """Commit a reply together with the client's private memory after it; durably if the client has any.

        Args:
            since: the client's last reply that counts; the client started from the memory after it.
            memory: the digest of the draft of new private memory; None if the memory is unchanged.

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

    def hold(self, reply: JointReply) -> JointReply:
        """Hold the reply of a joint job until it is forgotten, or its exchange is over."""
        self._joint |= dict.fromkeys(reply.task_ids, reply)
        return reply

    def keep_joint(self, asked: Container[tuple[int, str]]) -> None:
        """Forget the joint replies to tasks that are not asked, by client and fingerprint."""
        for reply in {reply.file: reply for reply in self._joint.values()}.values():
            if not all(task in asked for task in reply.task_ids):
                self.forget(reply)

    def note_memory(self, *, kept: bool) -> dict[int, int]:
        """Note, for later starts too, whether a client keeps anything from task to task; one that does is enough.

        Returns:
            The clients that have started without memory although they had some, each with the round after which it is
            missing; each once.
        """
        if self._keeps_memory is None or (kept and not self._keeps_memory):
            write_durably(self._kept, str(kept))
            self._keeps_memory = kept
        missing, self._missing = self._missing, {}
        return missing if kept else {}

    @property
    def is_memoryless(self) -> bool:
        """Whether the run's clients are known to keep nothing from task to task."""
        return self._keeps_memory is False

    def reply(self, client: int, round: int, exchange: int, task: str) -> StoredReply | None:
        """Return the reply that is stored for exactly this task; None if there is none.

        Raises:
            RunFolderError: the client's record is damaged.
        """
        joint = self._joint.get((client, task))
        if joint is not None and (joint.round, joint.exchange) == (round, exchange):
            return joint
        for stored in self._read(client).replies:
            if (stored.round, stored.exchange, stored.task) == (round, exchange, task):
                return stored
        return None

    def blob(self, reply: StoredReply) -> Blob:
        """Return the bytes of a reply, or of a partial sum."""
        return Blob(self._folder_of(reply) / reply.file, reply.digest, reply.size, reply.head)

    def _folder_of(self, reply: StoredReply) -> Path:
        if isinstance(reply, JointReply):
            return self._drafts
        return self.sums if isinstance(reply, StoredSum) else self._home(reply.client)

    def forget(self, reply: StoredReply) -> None:
        """Delete a reply that is damaged or cannot travel.

        Training it again, from the memory that its task names, gives the same arrays and memory; only the times in its
        header differ.

        Raises:
            RunFolderError: the client's record is damaged.
        """
        if isinstance(reply, JointReply):
            for task in reply.task_ids:
                self._joint.pop(task, None)
            self.blob(reply).path.unlink(missing_ok=True)
            return
        before = self._read(reply.client)
        with self._noting_failure(reply.client):
            self._write(reply.client, before, before.without(reply))

    def memory(self, client: int, since: ExchangeId | None) -> CheckedFile | None:
        """Return the client's private memory as it was after the reply ``since``; None if it had none.

        Raises:
            RunFolderError: the client's record is damaged, does not name a memory that is there, or has memory of later
                rounds only.
        """
        record, home = self._read(client), self._home(client)
        memory = record.memory_after(since)
        if since is not None and memory is None:
            for path in home.glob(f"memory-{since[0]}.{since[1]}-*"):
                raise RunFolderError(f"{home / COMMITTED} is missing or too old: it does not name {path.name}. "
                                     f"{_memory_advice(home)}")  # fmt: skip
            if record.has_memory and record.before is not None and since < record.before:
                raise RunFolderError(_older_run_folder(client, since[0], record.newest[0]))
            if not self.is_memoryless:
                self._missing[client] = since[0]  # the first finished task tells whether clients keep anything
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


def discard_drafts(job: Job) -> None:
    """Delete what a process has written for a job that is not finished."""
    for draft in (job.reply, job.memory_out):
        with suppress(OSError):  # the next start deletes what is left
            draft.unlink()


def _read_flag(path: Path) -> bool | None:
    """Return the boolean in a file; None if the file is missing or holds none."""
    try:
        return {"True": True, "False": False}.get(path.read_text(errors="replace"))
    except FileNotFoundError:
        return None


def _older_run_folder(client: int, asked: int, newest: int) -> str:
    return (
        f"the run asks for the private memory of client {client} after round {asked}, but this board is at round "
        f"{newest}: the coordinator's run folder is an older copy. Restore the newest one, or start a new run with "
        "another --out"
    )


def _memory_advice(home: Path) -> str:
    return (
        f"It names the private memory of client {home.name}: restore the file from a backup, or delete its folder "
        f"{home.parent.name}/{home.name}; then the client starts without memory"
    )
