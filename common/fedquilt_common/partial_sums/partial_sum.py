"""A partial sum on the wire: a container with its members, and the exact sums of each array in place of numbers.

The sums are those of the weighted replies minus the weighted arrays that the clients received. Both ends hold these,
and what is left is small.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import adjacent_arrays
from fedquilt_common.aggregation.exact_sum import BIN_BITS, ExactSum, components
from fedquilt_common.errors import PayloadError
from fedquilt_common.partial_sums.digit_planes import count_most_bytes, decode_block, encode_block
from fedquilt_common.partial_sums.members import (
    SEAL_SIZE,
    SumMember,
    check_seal,
    decode_members,
    encode_members,
    make_seal,
)
from fedquilt_common.types import Arrays
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import PackedArrays, block, write_arrays
from fedquilt_common.wire.messages import SUM_KEY, SumHeader
from fedquilt_common.wire.parsing import MAX_MESSAGE, parse

SUM_BLOCK: Final = 1 << 15
"""Numbers that are summed and encoded at a time: their bins stay in a processor's cache."""
_MEMBERS, _SEAL, _SUM = "members", "seal", "sum:"
"""Names of a sum's arrays; an array of the model is called ``sum:`` and its name."""
_TABLE: Final = "<u4"
_LARGEST: Final = 2 * float(np.finfo(np.float32).max)
"""Largest difference of a reply's number from its base's; those of 64-bit whole numbers are smaller."""

WeightedArrays = Sequence[tuple[Arrays, float]]
"""Arrays and their weights."""
Begin = Callable[[int], ExactSum]
"""Returns the sum with which a block of an array begins; the argument is the block's first element."""


def write_partial_sum(
    path: Path,
    header: SumHeader,
    members: Sequence[SumMember],
    replies: Sequence[Arrays],
    base: Arrays,
    sums: Sequence[PartialSum] = (),
) -> Blob:
    """Add replies and partial sums up, and write the sum to a file.

    Args:
        path: the file.
        header: names the exchange and the base.
        members: the clients of the replies, in their order.
        replies: arrays of the same names and shapes.
        base: what the clients received; the sum of an array that is not in it, or in another size, has no base.
        sums: checked sums of other clients, of the same arrays, and made from the same base.

    Returns:
        The file; the same replies in any order of adding give the same bytes, however they were added up before.

    Raises:
        NotFiniteError: a reply has numbers that are not finite.
        PayloadError: the sums do not fit together, or have an array whose size neither a reply nor the base has.
    """
    everybody = list(members)
    if sums:
        everybody = sorted(chain(members, *(one.members for one in sums)), key=attrgetter("client"))
    rows = list(zip(replies, [member.weight for member in members], strict=True))
    encoded = {_MEMBERS: np.frombuffer(encode_members(everybody), np.uint8), _SEAL: _encode_seal(members, sums)}
    weights = components([member.weight for member in everybody])
    for names in _names_together(replies, sums):
        whole = _sum_together(names, rows) if rows else {}
        for name in names:
            size = _size_in(name, replies, base)
            terms = weigh_base(base, name, size, weights, -1.0)
            for one in sums:
                terms = [*terms, *weigh_base(base, name, size, one.weights, 1.0)]  # what this sum has subtracted
            begun = _begin(name, size, whole.get(name), sums)
            encoded[f"{_SUM}{name}"] = _encode(name, size, terms if name in whole else [*rows, *terms], begun)
    return write_arrays(path, encoded, None, {SUM_KEY: header.model_dump_json()})


def check_layouts(replies: Sequence[PackedArrays]) -> None:
    """Check that replies can be added up.

    Raises:
        PayloadError: they have different arrays.
    """
    if len({own.layout for own in replies}) > 1:
        raise PayloadError("the replies have arrays of different names, dtypes or shapes")


def _names_together(replies: Sequence[Arrays], sums: Sequence[PartialSum]) -> list[list[str]]:
    """Return the names of the arrays, those together that lie next to each other in each reply."""
    names = [set(arrays) for arrays in (*replies, *sums)]
    if any(one != names[0] for one in names):
        raise PayloadError("the replies and the sums of other clients have arrays of different names")
    return adjacent_arrays(replies[0], replies) if replies else [[name] for name in sums[0]]


def _size_in(name: str, replies: Sequence[Arrays], base: Arrays) -> int:
    if not replies and name not in base:
        raise PayloadError(f"the size of {name!r} in a partial sum is unknown: the clients have not received it")
    return size_of(replies[0] if replies else base, name)


def _begin(name: str, size: int, whole: ExactSum | None, sums: Sequence[PartialSum]) -> Begin:
    """Return a function that returns what has been added before to the block that begins at an element."""

    def begin(start: int) -> ExactSum:
        total = whole or ExactSum(min(SUM_BLOCK, size - start))
        for one in sums:
            total.merge(one.block(name, start, size))
        return total

    return begin


def _encode_seal(members: Sequence[SumMember], sums: Sequence[PartialSum]) -> NDArray[np.uint8]:
    def begin(_: int) -> ExactSum:
        total = ExactSum(SEAL_SIZE)
        for one in sums:
            total.merge(one.seal)
        return total

    return _encode(_SEAL, SEAL_SIZE, [({_SEAL: make_seal(one.client)}, one.weight) for one in members], begin)


def size_of(arrays: Arrays, name: str) -> int:
    """Return the number of elements of an array, without reading it if it is in a container."""
    return math.prod(arrays.shape(name) if isinstance(arrays, PackedArrays) else arrays[name].shape)


def weigh_base(base: Arrays, name: str, size: int, weights: Sequence[float], sign: float) -> WeightedArrays:
    """Return what both ends subtract from, and add to, the sums of an array."""
    if name not in base or size_of(base, name) != size:
        return []
    return [(base, sign * weight) for weight in weights]


def add_rows(total: ExactSum, name: str, start: int, rows: WeightedArrays) -> None:
    """Add the weighted elements of an array from ``start`` on, as many as the sum has; short ones together."""
    step = max(1, SUM_BLOCK // max(1, total.size))
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        values = [block(arrays, name, start, start + total.size) for arrays, _ in some]
        total.add_products(np.stack(values), np.array([weight for _, weight in some]))


def _sum_together(names: Sequence[str], rows: WeightedArrays) -> dict[str, ExactSum]:
    """Return the sums of small arrays that lie one after another in each reply: reading them together is quicker."""
    ends = list(accumulate((size_of(rows[0][0], name) for name in names), initial=0))
    if len(names) < 2 or ends[-1] > SUM_BLOCK:
        return {}
    total = ExactSum(ends[-1])
    add_rows(total, names[0], 0, rows)
    return {name: total.part(start, stop) for name, start, stop in zip(names, ends, ends[1:], strict=False)}


def _encode(name: str, size: int, rows: WeightedArrays, begin: Begin) -> NDArray[np.uint8]:
    """Return the blocks of an array's sums, after a table of their lengths.

    Args:
        name: the array.
        size: its numbers.
        rows: what is added.
        begin: returns the sum of a block before ``rows`` are added.
    """
    blocks = []
    for start in range(0, size, SUM_BLOCK):
        total = begin(start)
        add_rows(total, name, start, rows)
        blocks.append(encode_block(total))
    table = np.array([len(content) for content in blocks], _TABLE)
    return np.frombuffer(table.tobytes() + b"".join(blocks), np.uint8)


@dataclass(frozen=True)
class PartialSum(Mapping[str, NDArray[Any]]):
    """A partial sum as it arrived; a mapping of the encoded arrays.

    Args:
        content: its container.
    """

    content: PackedArrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.content[f"{_SUM}{name}"]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(_SUM) for name in self.content if name.startswith(_SUM))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def header(self) -> SumHeader:
        """Names the exchange.

        Raises:
            ProtocolError: it is not valid.
        """
        return parse(SumHeader, self.content.metadata.get(SUM_KEY, "").encode(), "the header of a partial sum")

    @cached_property
    def members(self) -> list[SumMember]:
        """The clients whose replies it has.

        Raises:
            ProtocolError: they are not valid.
            RepeatedMemberError: a client is listed twice.
        """
        if _MEMBERS not in self.content or _SEAL not in self.content:
            raise PayloadError("a partial sum has no members or no seal")
        size = size_of(self.content, _MEMBERS)
        if size > MAX_MESSAGE:  # before they take memory
            raise PayloadError(f"the members of a partial sum have {size} bytes; the limit is {MAX_MESSAGE}")
        return decode_members(self._bytes(_MEMBERS, 0, size))

    def check_members(self) -> None:
        """Check that each member was added once, with its weight.

        Raises:
            ProtocolError: the seal or the members are not valid.
            RepeatedMemberError: a client was added twice.
            MissingMemberError: a client is listed whose reply was left out.
            SumMismatchError: it is the sum of other replies.
        """
        members = self.members
        check_seal(self.seal, members)

    @property
    def seal(self) -> ExactSum:
        """The sum of the members' seals, of SEAL_SIZE numbers.

        Raises:
            PayloadError: it is not valid.
        """
        return self._decode(_SEAL, 0, SEAL_SIZE, SEAL_SIZE)

    @cached_property
    def weights(self) -> list[float]:
        """Numbers that add up to the members' weights exactly."""
        return components([member.weight for member in self.members])

    def check(self, sizes: Mapping[str, int]) -> None:
        """Read all of it, block by block.

        Args:
            sizes: numbers of each array that it must have.

        Raises:
            ProtocolError: it has other arrays, or a part is not valid.
        """
        if set(self.content) != {_MEMBERS, _SEAL, *(f"{_SUM}{name}" for name in sizes)}:
            raise PayloadError("a partial sum has other arrays than its task expects")
        most = _LARGEST * math.fsum(map(abs, self.weights))
        highest = (math.frexp(most)[1] + 1) // BIN_BITS  # one bit more for a digit's carry
        for name, size in sizes.items():
            for start in range(0, size, SUM_BLOCK):
                if self.block(name, start, size).highest > highest:
                    raise PayloadError(f"{name!r} of a partial sum has numbers beyond those of weighted replies")

    def block(self, name: str, start: int, size: int) -> ExactSum:
        """Return the sums of an array from ``start`` on, at most SUM_BLOCK, without the base.

        Args:
            name: the array.
            start: a multiple of SUM_BLOCK.
            size: numbers of the whole array.

        Raises:
            PayloadError: the block is not valid.
        """
        return self._decode(f"{_SUM}{name}", start // SUM_BLOCK, size, min(SUM_BLOCK, size - start))

    def _decode(self, name: str, number: int, size: int, length: int) -> ExactSum:
        count, all_bytes = -(-size // SUM_BLOCK), size_of(self.content, name)
        head = struct.calcsize("<I") * count
        if head > all_bytes:
            raise PayloadError(f"{name!r} of a partial sum has fewer than {count} blocks")
        lengths = np.frombuffer(self._bytes(name, 0, head), _TABLE).astype(np.int64)
        if head + int(lengths.sum()) != all_bytes:
            raise PayloadError(f"{name!r} of a partial sum does not have the length of its blocks")
        if int(lengths[number]) > count_most_bytes(length):
            raise PayloadError(
                f"a block of {name!r} of a partial sum has more bytes than its {length} numbers can take"
            )
        start = head + int(lengths[:number].sum())
        return decode_block(self._bytes(name, start, start + int(lengths[number])), length)

    def _bytes(self, name: str, start: int, stop: int) -> bytes:
        if self.content.dtype(name) != "U8":
            raise PayloadError(f"{name[:80]!r} of a partial sum does not consist of bytes")
        return self.content.block(name, start, stop).tobytes()
