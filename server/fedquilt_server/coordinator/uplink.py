"""Replies on their way in: nothing is trusted, nothing is taken before its size is known to fit.

A reply is believed when its bytes have the announced digest, it answers the question that was asked, its arrays have
the names, shapes and dtypes asked for, and every number is finite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedquilt_common.aggregation.averages import BLOCK
from fedquilt_common.algorithm_api import Task
from fedquilt_common.errors import DamagedTransferError, PayloadError, ProtocolError
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import ClientId, Precision, Shapes
from fedquilt_common.wire.chunks import Assembly, Blob, ChunkHeader
from fedquilt_common.wire.codec import DTYPES, FileArrays, wire_dtype
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader, RoundMessage, parse
from fedquilt_common.wire.topics import Address
from fedquilt_server.runs.blob_store import BlobStore

TRANSFERS_PER_CLIENT: Final = 3
REFUSED_KEPT: Final = 10_000


Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Array name -> (wire dtype, shape)."""


@dataclass(frozen=True)
class ExpectedReply:
    """What one client was asked, and what its answer must look like: one of ``layouts``, with ``metrics`` between
    bounds, and of the public samples with the digest ``public``."""

    fingerprint: str
    layouts: Sequence[Layout]
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    public: str | None = None

    @property
    def limit(self) -> int:
        """Largest reply in bytes: the numbers, and room for the container's header."""
        return max(_numbers(layout) + 8192 + 256 * len(layout) for layout in self.layouts)


@dataclass
class Transfer:
    """One reply being assembled."""

    address: Address
    assembly: Assembly
    last_chunk_at: float


def expected_replies(
    message: RoundMessage, tasks: Mapping[ClientId, Task], up: Precision, public: str | None = None
) -> dict[ClientId, ExpectedReply]:
    """What is expected of each client of an exchange; ``public``: the digest of the public samples."""
    layouts: dict[tuple[int, int, Slice | None], Sequence[Layout]] = {}
    asked = {}
    for group in message.tasks:
        for client in group.clients:
            task = tasks[client]
            key = id(task.arrays), id(task.expect), task.slice
            if key not in layouts:
                layouts[key] = _layouts(task, up)
            of = public if task.labels else None
            asked[client] = ExpectedReply(message.fingerprint(group, client), layouts[key], task.metrics, of)
    return asked


def _layouts(task: Task, up: Precision) -> list[Layout]:
    if task.expect is None and task.slice is None:
        return [{name: (wire_dtype(x.dtype, up), tuple(x.shape)) for name, x in task.arrays.items()}]
    known = task.arrays if task.slice is None else task.slice.anatomy.arrays
    dtypes = {name: np.dtype(known[name].dtype) for name in known}
    dtypes |= {name: np.dtype(kind) for name, kind in task.dtypes.items()}
    allowed = _allowed(task)
    return [
        {name: (wire_dtype(dtypes.get(name, np.dtype(np.float32)), up), tuple(shape)) for name, shape in shapes.items()}
        for shapes in allowed
    ]


def _allowed(task: Task) -> Sequence[Shapes]:
    if task.expect is None:
        return [] if task.slice is None else [task.slice.shapes]
    return task.expect if isinstance(task.expect, tuple) else [task.expect]


def _numbers(layout: Layout) -> int:
    return sum(DTYPES[dtype].itemsize * math.prod(shape) for dtype, shape in layout.values())


class Uplink:
    """The transfers of the open exchange."""

    def __init__(self, run: str, store: BlobStore) -> None:
        self._run = run
        self._store = store
        self._questions: dict[ClientId, ExpectedReply] = {}
        self._transfers: dict[tuple[str, ClientId, str], Transfer] = {}
        self._refused: dict[tuple[str, ClientId, str], str] = {}
        self._taken: Counter[ClientId] = Counter()
        self._serial = 0

    def open(self, asked: dict[ClientId, ExpectedReply]) -> None:
        """A new exchange: whatever was under way is of no use any more."""
        for transfer in self._transfers.values():
            transfer.assembly.discard()
        self._transfers.clear()
        self._refused.clear()
        self._taken.clear()
        self._questions = asked

    def taken(self, client: ClientId) -> int:
        """Bytes of payload that have come from a client in this exchange."""
        return self._taken[client]

    def refuse(self, address: Address, digest: str, reason: str) -> None:
        """Nothing more of this transfer is wanted."""
        transfer = self._transfers.pop((address.agent, address.client, digest), None)
        if transfer is not None:
            transfer.assembly.discard()
        if len(self._refused) < REFUSED_KEPT:
            self._refused[address.agent, address.client, digest] = reason

    def refusal(self, address: Address, digest: str) -> str | None:
        """Why this transfer was refused, if it was."""
        return self._refused.get((address.agent, address.client, digest))

    def drop(self, client: ClientId) -> None:
        """The client's reply has been counted: give up its other transfers."""
        for key in [k for k in self._transfers if k[1] == client]:
            self._transfers.pop(key).assembly.discard()

    def take(self, address: Address, header: ChunkHeader, payload: bytes, now: float) -> Blob | None:
        """One chunk; the whole reply, verified byte for byte, once it is complete.

        Raises:
            PayloadError: when the chunk cannot be part of an answer to the open question.
        """
        if (address.agent, address.client, header.digest) in self._refused:
            return None
        question = self._questions.get(address.client)
        if question is None:
            raise PayloadError(f"client {address.client} is not asked in round {address.round}")
        if header.index != address.chunk:
            raise DamagedTransferError(f"chunk {header.index} came on the topic of chunk {address.chunk}")
        transfer = self._transfer(address, header, question, now)
        self._taken[address.client] += len(payload)
        transfer.last_chunk_at = now
        if not transfer.assembly.add(header, payload):
            return None
        del self._transfers[address.agent, address.client, header.digest]
        target = self._store.reply_path(address.client, address.round, address.exchange, header.digest)
        return transfer.assembly.finish(target, durable=True)

    def _transfer(self, address: Address, header: ChunkHeader, question: ExpectedReply, now: float) -> Transfer:
        key = address.agent, address.client, header.digest
        known = self._transfers.get(key)
        if known is not None and not known.assembly.fits(header):  # cut otherwise, for a broker with another limit
            self._transfers.pop(key).assembly.discard()
        if key not in self._transfers:
            self._make_room(address)
            self._serial += 1
            assembly = Assembly(self._store.partial / f"{self._serial}", header, question.limit)
            self._transfers[key] = Transfer(address, assembly, now)
        return self._transfers[key]

    def _make_room(self, address: Address) -> None:
        mine = [key for key in self._transfers if key[:2] == (address.agent, address.client)]
        if len(mine) >= TRANSFERS_PER_CLIENT:
            oldest = min(mine, key=lambda key: self._transfers[key].last_chunk_at)
            self._transfers.pop(oldest).assembly.discard()

    def under_way(self, address: Address, digest: str) -> Transfer | None:
        """The unfinished transfer that a chunk belongs to."""
        return self._transfers.get((address.agent, address.client, digest))

    def verify(self, address: Address, blob: Blob) -> ReplyHeader:
        """What the reply says of itself, once everything about it is as asked.

        Raises:
            ProtocolError: when anything is not; the blob is deleted.
        """
        try:
            return self._checked(address, blob)
        except ProtocolError:
            blob.path.unlink(missing_ok=True)
            raise

    def _checked(self, address: Address, blob: Blob) -> ReplyHeader:
        arrays = FileArrays(blob.path)
        header = _header(arrays)
        question = self._questions[address.client]
        said = (header.run, header.client, header.round, header.exchange)
        if said != (self._run, address.client, address.round, address.exchange):
            raise PayloadError("the reply was made for another run, client or exchange than its topic says")
        if header.task != question.fingerprint:
            raise PayloadError("the reply answers another task than the one that was given")
        _check_public(header.public, question.public)
        _check_layout(arrays, question.layouts)
        _check_metrics(header.metrics, question.metrics)
        _check_finite(arrays)
        return header


def _header(arrays: FileArrays) -> ReplyHeader:
    return parse(ReplyHeader, arrays.metadata.get(REPLY_KEY, "").encode(), "the reply's header")


def _check_layout(arrays: FileArrays, layouts: Sequence[Layout]) -> None:
    found = {name: (arrays.dtype(name), arrays.shape(name)) for name in arrays}
    if any(found == dict(layout) for layout in layouts):
        return
    wrong = _difference(found, layouts[0])
    if len(layouts) > 1:
        raise PayloadError(f"the reply is none of the {len(layouts)} answers allowed, such as one nested in the "
                           f"sub-model that was sent: {wrong}"[:500])  # fmt: skip
    raise PayloadError(wrong)


def _difference(found: Layout, layout: Layout) -> str:
    if set(found) != set(layout):
        odd = sorted(set(found) ^ set(layout))[0]
        return f"the reply has other arrays than asked for, such as {odd[:80]!r}"
    name = next(name for name in layout if found[name] != layout[name])
    (dtype, shape), (asked_dtype, asked_shape) = found[name], layout[name]
    if shape != asked_shape:
        return f"array {name!r} has shape {shape} instead of {asked_shape}"[:300]
    return f"array {name!r} has dtype {dtype} instead of {asked_dtype}"


def _check_public(found: str | None, asked: str | None) -> None:
    if asked is not None and found != asked:
        said = "do not say of which public samples they are" if found is None else f"are of public set {found[:12]}"
        raise PayloadError(f"the soft labels {said}; the coordinator's is {asked[:12]}")


def _check_metrics(found: Mapping[str, float], asked: Mapping[str, tuple[float, float]]) -> None:
    for name, (least, most) in asked.items():
        if name not in found:
            raise PayloadError(f"the reply lacks the metric {name!r}")
        if not least <= found[name] <= most:
            raise PayloadError(f"metric {name!r} is {found[name]:g}; it must be between {least:g} and {most:g}")


def _check_finite(arrays: FileArrays) -> None:
    for name in arrays:
        size = math.prod(arrays.shape(name))
        for start in range(0, size, BLOCK):
            part = arrays.block(name, start, min(start + BLOCK, size))
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                raise PayloadError(f"array {name!r} holds numbers that are not finite")
