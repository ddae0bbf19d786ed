"""What a board must not lose: its boot number, its clients' private memory, and replies not yet acknowledged.

Everything of one client is committed by replacing one small file, so memory and reply are there together or not at
all, whatever is killed when.
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
    """A finished reply on disk. ``task`` is the fingerprint of what it answers, ``head`` of how many bytes the head of
    soft labels is."""

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
    """Where a worker writes before anything is committed."""

    reply: Path
    memory: Path


class AgentStore:
    """The agent's state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = lock_folder(folder)

    def release(self) -> None:
        """Let another process work in the folder."""
        self._lock.close()

    def next_boot(self) -> int:
        """A number larger than at any start before, also on a board whose clock starts in 1970."""
        path = self.folder / "boot"
        try:
            last = int(path.read_text())
        except (FileNotFoundError, ValueError):
            last = 0
        boot = max(last + 1, int(time.time()))
        write_durably(path, str(boot))
        return boot

    def end_run(self, run: str) -> None:
        """A run is over: of all that it left here only private memory is still of use.

        A run that was merely interrupted keeps its replies, because it may be resumed and ask for them.
        """
        home = self.folder / "runs" / check_name(run, "run")
        for reply in home.glob("clients/*/reply-*"):
            reply.unlink(missing_ok=True)
        for leftover in (home / "patches", home / "drafts"):
            shutil.rmtree(leftover, ignore_errors=True)

    def open_run(self, run: RunMessage) -> RunStore:
        """The store of a run; what earlier runs left in flight is deleted, their private memory is not."""
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
        shutil.rmtree(self.patches, ignore_errors=True)  # the broker has them; a power cut may have spoilt these
        self.patches.mkdir(parents=True)
        write_durably(self.message, run.model_dump_json())

    def patch(self, digest: str) -> Path:
        """Where a patch lies, or will."""
        return self.patches / digest

    def keep_patches(self, digests: set[str]) -> None:
        """Delete all other patches, finished or not."""
        for path in self.patches.iterdir():
            if path.name not in digests and path.name.partition(".")[0] not in digests:
                path.unlink(missing_ok=True)

    @property
    def limit(self) -> Path:
        """Where the limit lies that a training process of this run must stay below, once there is one."""
        return self.folder / "limit"

    def drafts(self, client: int, round: int, exchange: int) -> Drafts:
        """Paths for a worker to write to."""
        folder = self.folder / "drafts"
        folder.mkdir(exist_ok=True)
        stem = f"{client}-{round}.{exchange}"
        return Drafts(folder / f"{stem}.reply", folder / f"{stem}.memory")

    def commit(self, reply: StoredReply, drafts: Drafts, since: ExchangeId | None, *, memory: bool) -> StoredReply:
        """Make a reply, and the client's private memory after it, true in one step.

        ``since``: the reply after which the memory was taken; ``memory``: there is a new one among the drafts.
        """
        home = self._home(reply.client)
        home.mkdir(parents=True, exist_ok=True)
        drafts.reply.replace(home / reply.file)
        known = self._read(reply.client)
        after = _file_of(known, since)
        if memory:
            after = f"memory-{reply.round}.{reply.exchange}-{reply.digest[:16]}"
            drafts.memory.replace(home / after)
        record = _recorded(known, reply, since, after)
        write_durably(home / "committed.json", json.dumps(record))
        self._tidy(home, record)
        return reply

    def reply(self, client: int, round: int, exchange: int, task: str) -> StoredReply | None:
        """The committed answer to exactly this task."""
        for known in self._read(client)["replies"]:
            stored = StoredReply(**known)
            if (stored.round, stored.exchange, stored.task) == (round, exchange, task):
                return stored
        return None

    def blob(self, reply: StoredReply) -> Blob:
        """The reply's bytes."""
        return Blob(self._home(reply.client) / reply.file, reply.digest, reply.size, reply.head)

    def memory(self, client: int, since: ExchangeId | None) -> Path | None:
        """The client's private memory as it was after the reply ``since``; None where it had none."""
        record = self._read(client)
        if since is not None and list(since) not in [version[:2] for version in record["memories"]]:
            log.warning("client %d: its private memory after round %d is not here; it starts anew", client, since[0])
        name = _file_of(record, since)
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
    """The newest private memory of a client in a run, after its reply of ``round``."""

    run: str
    algorithm: str
    client: int
    round: int
    file: Path


Damaged = Callable[[RunFolderError], None]
"""Told of what cannot be read."""


def _raise(error: RunFolderError) -> None:
    raise error


def kept_memories(folder: Path, damaged: Damaged = _raise) -> list[KeptMemory]:
    """All that lie in an agent's state folder; the agent may be running. What is ``damaged`` is told, and left out."""
    homes = [home for home in sorted((folder / "runs").iterdir()) if home.is_dir()]
    return [kept for home in homes for kept in _kept_in(home, damaged)]


def _kept_in(home: Path, damaged: Damaged) -> Iterator[KeptMemory]:
    try:
        run = RunMessage.model_validate_json((home / "run.json").read_bytes())
    except (OSError, ValueError):
        return damaged(RunFolderError(f"{home / 'run.json'}: cannot be read; is this the state folder of an agent?"))
    algorithm = str(run.experiment.get("algorithm", {}).get("name", ""))
    places = [place for place in home.glob("clients/*/committed.json") if place.parent.name.isdigit()]
    for place in sorted(places, key=lambda path: int(path.parent.name)):
        try:
            memories = [m for m in json.loads(place.read_text())["memories"] if m[2]]
            for number, _, name in memories[-1:]:
                yield KeptMemory(run.run, algorithm, int(place.parent.name), int(number), place.parent / name)
        except (OSError, ValueError, TypeError, LookupError):
            damaged(RunFolderError(f"{place}: cannot be read, so what client {place.parent.name} kept is not known"))


def _file_of(record: Mapping[str, Any], since: ExchangeId | None) -> str | None:
    """Of the memory after the reply ``since``."""
    return next((file for *moment, file in record["memories"] if since is not None and moment == list(since)), None)


def _recorded(
    known: Mapping[str, Any], reply: StoredReply, since: ExchangeId | None, after: str | None
) -> dict[str, Any]:
    """What ``committed.json`` says after ``reply``.

    Kept are the memories of its round, and the one from which that round began: the coordinator may begin it again.
    """
    before = known["before"] if since is not None and since[0] == reply.round else since
    moment = [reply.round, reply.exchange]
    memories = [m for m in known["memories"] if m[:2] != moment and (m[0] == reply.round or m[:2] == _listed(before))]
    replies = [r for r in known["replies"] if (r["round"], r["exchange"]) >= (reply.round - 1, 0)]
    return {
        "replies": [r for r in replies if r["file"] != reply.file] + [asdict(reply)],
        "memories": [*memories, [*moment, after]],
        "before": _listed(before),
    }


def _listed(moment: Sequence[int] | None) -> list[int] | None:
    """As in JSON."""
    return None if moment is None else list(moment)
