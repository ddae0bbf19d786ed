"""The record of a client on this board: its replies and the private memory after each.

It is one checked file, so that memory and replies are committed together. A client without private memory needs none:
the names of its reply files contain the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import write_atomically, write_durably
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.message_base import DIGEST_PATTERN

COMMITTED: Final = "committed.json"
_MEMORY: Final = "memory-"
_REPLY: Final = re.compile(rf"reply-(\d{{1,9}})\.(\d{{1,9}})-(\w{{1,64}})-({DIGEST_PATTERN})-(\d{{1,9}})")


@dataclass(frozen=True)
class StoredReply:
    """A finished reply on disk.

    Attributes:
        task: fingerprint of the task that it answers.
        file: name below the client's folder.
        digest: of the file, in hex.
        size: bytes of the file.
        head: length in bytes of the head of soft labels.
        clients: whose replies it has, if it is a partial sum; it travels as the reply of the first one.
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
    clients: tuple[int, ...] = ()

    @property
    def covers(self) -> tuple[int, ...]:
        """The clients for which it counts."""
        return self.clients or (self.client,)

    @property
    def task_ids(self) -> tuple[tuple[int, str], ...]:
        """The tasks that were done here for it: the client and the fingerprint of each."""
        return ((self.client, self.task),)

    @property
    def is_sum(self) -> bool:
        """Whether it is a partial sum."""
        return bool(self.clients)


@dataclass(frozen=True)
class StoredSum(StoredReply):
    """A partial sum that was made here: its file is in the folder of the sums."""


@dataclass(frozen=True)
class JointReply(StoredReply):
    """The sum of the replies of a joint job. Its file is a draft: after a restart its tasks are done again.

    Attributes:
        tasks: the fingerprint of each client's task, in the order of ``clients``.
    """

    tasks: tuple[str, ...] = ()

    @property
    def task_ids(self) -> tuple[tuple[int, str], ...]:
        return tuple(zip(self.clients, self.tasks, strict=True))


@dataclass(frozen=True)
class StoredMemory:
    """The private memory of a client after one of its replies.

    Attributes:
        after: round and exchange of the reply.
        file: name below the client's folder; None if the client has no memory.
        digest: of the file, in hex; None if an earlier version of fedquilt wrote it.
    """

    after: ExchangeId
    file: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class ClientRecord:
    """What a client has committed.

    Attributes:
        replies: those whose memory is kept, one of each exchange.
        memories: after each reply of the newest round, and at its start; of the round before, too, if the client had
            none after it.
        before: the reply after which the newest round started; None if it started without memory.
    """

    replies: tuple[StoredReply, ...] = ()
    memories: tuple[StoredMemory, ...] = ()
    before: ExchangeId | None = None

    def memory_after(self, exchange: ExchangeId | None) -> StoredMemory | None:
        """Return the memory after a reply; None if the record does not have it."""
        return next((m for m in self.memories if exchange is not None and m.after == tuple(exchange)), None)

    def add(self, reply: StoredReply, since: ExchangeId | None, memory: StoredMemory) -> ClientRecord:
        """Return the record with one more reply and the memory after it.

        It keeps the memories of the reply's round and the one from which that round started: the coordinator may
        restart the round. Another reply stays only together with the memory after it: if that reply counted without
        it, the client's next training would start from another memory.
        """
        start = self.before if since is not None and since[0] == reply.round else since

        def stays(other: StoredMemory) -> bool:
            is_recent_none = other.file is None and other.after[0] >= reply.round - 1
            return other.after != memory.after and (
                other.after[0] == reply.round or other.after == start or is_recent_none
            )

        kept = [other for other in self.memories if stays(other)]
        exchanges = {other.after for other in kept}
        replies = [r for r in self.replies if (r.round, r.exchange) in exchanges]
        return ClientRecord((*replies, reply), (*kept, memory), start)

    def without(self, reply: StoredReply) -> ClientRecord:
        """Return the record without a reply; its memory stays: the same task gives the same memory again."""
        return replace(self, replies=tuple(r for r in self.replies if r.file != reply.file))

    @property
    def has_memory(self) -> bool:
        """Whether the client has, or had at the start of its newest round, private memory."""
        return any(memory.file is not None for memory in self.memories)

    @property
    def newest(self) -> ExchangeId:
        """The newest reply whose memory it has, even if there was none after it; (0, 0) without any."""
        return max((memory.after for memory in self.memories), default=(0, 0))

    @property
    def files(self) -> set[str]:
        """Names of the files that the record needs."""
        return {COMMITTED, *(r.file for r in self.replies), *(m.file for m in self.memories if m.file)}


def read_record(home: Path) -> ClientRecord:
    """Read the record in a client's folder; an empty one if the client has none.

    Raises:
        RunFolderError: the file is damaged.
        OSError: the file cannot be read; it may be intact.
    """
    path = home / COMMITTED
    try:
        return _decode(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ClientRecord()
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from None


def name_reply(round: int, exchange: int, task: str, digest: str, head: int) -> str:
    """Return the name of a reply's file, which holds all fields of its record except the size."""
    return f"reply-{round}.{exchange}-{task}-{digest}-{head}"


def is_reply(name: str) -> bool:
    """Whether a file's name is that of a reply."""
    return name.startswith("reply-")


def name_memory(exchange: ExchangeId, digest: str) -> str:
    """Return the name of the file of the private memory after a reply."""
    return f"{_MEMORY}{exchange[0]}.{exchange[1]}-{digest[:16]}"


def find_replies(run: str, client: int, home: Path) -> ClientRecord:
    """Rebuild the record from the names of the reply files.

    It is empty if the client has a private memory, which the names do not contain.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        files = list(os.scandir(home))
    except FileNotFoundError:
        return ClientRecord()
    if any(file.name.startswith(_MEMORY) for file in files):
        return ClientRecord()
    found = [(match, file) for file in files if (match := _REPLY.fullmatch(file.name))]
    replies = tuple(
        StoredReply(run, client, int(m[1]), int(m[2]), m[3], file.name, m[4], file.stat().st_size, int(m[5]))
        for m, file in found
    )
    exchanges = dict.fromkeys((reply.round, reply.exchange) for reply in sorted(replies, key=attrgetter("round")))
    return ClientRecord(replies, tuple(StoredMemory(exchange) for exchange in exchanges))


def write_record(home: Path, record: ClientRecord, *, durable: bool = True) -> None:
    """Replace the record in a client's folder, with its checksum.

    Args:
        home: the folder.
        record: what the client has committed.
        durable: wait until it is on the disk. A client without private memory trains a reply again that a power cut
            has lost, and the same arrays come out.
    """
    fields = asdict(record)
    for reply in fields["replies"]:
        del reply["clients"]  # the file of a sum lists them
    text = _encode(fields)
    write = write_durably if durable else write_atomically
    write(home / COMMITTED, f'{{"sha256": "{_checksum(text)}", "record": {text}}}')


def _encode(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _decode(content: dict[str, Any]) -> ClientRecord:
    """Decode the content of the file; one without a checksum is from an earlier version of fedquilt."""
    if "sha256" not in content:
        return _record(content["replies"], [_old_memory(*m) for m in content["memories"]], content["before"])
    fields = content["record"]
    if content["sha256"] != _checksum(_encode(fields)):
        raise ValueError("its content does not have the checksum that it names")
    memories = [StoredMemory(_exchange(m["after"]), m["file"], m["digest"]) for m in fields["memories"]]
    return _record(fields["replies"], memories, fields["before"])


def _record(replies: list[dict[str, Any]], memories: list[StoredMemory], before: list[int] | None) -> ClientRecord:
    return ClientRecord(
        tuple(StoredReply(**reply) for reply in replies), tuple(memories), None if before is None else _exchange(before)
    )


def _old_memory(round: int, exchange: int, file: str | None) -> StoredMemory:
    return StoredMemory(_exchange([round, exchange]), file)


def _exchange(numbers: list[int]) -> ExchangeId:
    round, exchange = numbers
    return int(round), int(exchange)
