"""Which replies of an agent travel together: the groups of an exchange, on disk before their sums are sent.

A sum that is sent again after a crash has the same members, so the coordinator recognises it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedquilt_client.records import StoredReply, StoredSum
from fedquilt_client.store import RunStore
from fedquilt_common.files.durable import write_durably
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.number_ranges import pack_numbers, unpack_numbers

if TYPE_CHECKING:
    from fedquilt_common.partial_sums.members import SumMember
    from fedquilt_common.wire.codec import PackedArrays


IN_MEMORY: Final = 32 * 1024 * 1024
"""Bytes of replies that are read as a whole before they are added up, which is quicker for many small ones."""


@dataclass(frozen=True)
class SumKey:
    """What replies have in common that may be added up: the exchange, and the patch that their clients received."""

    round: int
    exchange: int
    base: str

    @property
    def exchange_id(self) -> ExchangeId:
        """Round and exchange."""
        return self.round, self.exchange


@dataclass(frozen=True)
class SumGroup:
    """Clients whose replies travel as one sum.

    Attributes:
        clients: in their order, two or more.
        digest: of the digests of its parts.
        parts: the first client of each reply, and of each sum, that it is made of.
    """

    key: SumKey
    clients: tuple[int, ...]
    digest: str
    parts: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of its record on disk, without the suffix."""
        return f"{self.key.round}.{self.key.exchange}-{self.clients[0]}"


def digest_replies(replies: Sequence[StoredReply]) -> str:
    """Return what identifies these replies together."""
    return hashlib.sha256("".join(reply.digest for reply in replies).encode()).hexdigest()


class SumGroups:
    """The groups of a run on this board's disk.

    Args:
        store: of the run.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._folder = store.sums

    def read(self, exchange: ExchangeId) -> list[SumGroup]:
        """Return the groups of an exchange, and delete what earlier ones have left; a damaged record counts as none."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            group = _decode(path)
            if group is not None and group.key.exchange_id == exchange:
                found.append(group)
            else:
                self._delete(path.stem)
        return found

    def commit(self, key: SumKey, replies: Sequence[StoredReply]) -> SumGroup:
        """Decide durably that these replies travel together.

        Args:
            key: what they have in common.
            replies: in client order; sums of other clients may be among them.
        """
        clients = tuple(sorted(client for reply in replies for client in reply.covers))
        group = SumGroup(key, clients, digest_replies(replies), tuple(reply.client for reply in replies))
        self._folder.mkdir(exist_ok=True)
        fields = {"round": key.round, "exchange": key.exchange, "base": key.base, "digest": group.digest}
        write_durably(self._path(group.name), json.dumps({**fields, **_pack_clients(group)}))
        return group

    def dissolve(self, group: SumGroup) -> None:
        """Forget a group; its members may travel otherwise."""
        self._delete(group.name)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)
        (self._folder / name).unlink(missing_ok=True)

    def find_damaged(self, replies: Sequence[StoredReply]) -> list[StoredReply]:
        """Return the replies whose file on disk is damaged.

        Raises:
            OSError: a file cannot be read; it may be intact.
        """
        files = ((reply, self._store.blob(reply)) for reply in replies)
        return [reply for reply, blob in files if not CheckedFile(blob.path, blob.digest).is_intact()]

    def write(self, group: SumGroup, replies: Mapping[int, StoredReply]) -> StoredSum:
        """Add the replies of a group up.

        Args:
            group: a committed one, whose base is on disk.
            replies: its parts by their first client, intact.

        Raises:
            OSError: a file cannot be read, or the sum cannot be written.
            PayloadError: the replies have different arrays, or numbers that are not finite.
        """
        from fedquilt_common.partial_sums.partial_sum import (  # an idle agent needs none
            PartialSum,
            check_layouts,
            write_partial_sum,
        )
        from fedquilt_common.wire.codec import FileArrays, open_arrays
        from fedquilt_common.wire.messages import SumHeader

        key, run = group.key, self._store.run.run
        parts = [replies[client] for client in group.parts]
        is_small = sum(part.size for part in parts) <= IN_MEMORY
        opened = [(part, (open_arrays if is_small else FileArrays)(self._store.blob(part).path)) for part in parts]
        members = [(_member_of(part, own), own) for part, own in opened if not part.is_sum]
        taken = [PartialSum(own) for part, own in opened if part.is_sum]
        header = SumHeader(run=run, round=key.round, exchange=key.exchange, base=key.base)
        path, base = self._folder / group.name, open_arrays(self._store.patch(key.base))
        arrays = [own for _, own in members]
        check_layouts(arrays)
        blob = write_partial_sum(path, header, [member for member, _ in members], arrays, base, taken)
        first = replies[group.parts[0]]
        ids = run, first.client, key.round, key.exchange, first.task
        return StoredSum(*ids, group.name, blob.digest, blob.size, clients=group.clients)


def _member_of(reply: StoredReply, arrays: PackedArrays) -> SumMember:
    """Return what a sum lists of a reply."""
    from fedquilt_common.partial_sums.members import SumMember
    from fedquilt_common.wire.messages import REPLY_KEY

    header = json.loads(arrays.metadata[REPLY_KEY])  # this agent's own, or checked when it was taken
    return SumMember(reply.client, reply.task, header["weight"], header["metrics"])


def _pack_clients(group: SumGroup) -> dict[str, Any]:
    packed = {"clients": pack_numbers(group.clients)}
    return packed if group.parts == group.clients else {**packed, "parts": pack_numbers(group.parts)}


def _decode(path: Path) -> SumGroup | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        key = SumKey(fields["round"], fields["exchange"], fields["base"])
        clients = tuple(unpack_numbers(fields["clients"]))
        return SumGroup(key, clients, fields["digest"], tuple(unpack_numbers(fields.get("parts", fields["clients"]))))
    except (OSError, ValueError, LookupError, TypeError):
        return None
