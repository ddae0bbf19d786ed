"""Exact sums as few bytes: their digits are cut into planes of bytes, and each plane is deflated where that pays.

The bytes of a block are::

    lowest plane (int16), planes (uint16)                      little-endian; no planes: every sum is 0
    the plane of the signs, then the planes, lowest first      each with its kind before it

A plane has one byte of each sum's absolute value; the plane p those of 2^(8 p). The plane of the signs has one bit for
each sum. Kinds: 0, all zero, without bytes; 1, as it is; 2, deflated, with its length (uint32) before it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.exact_sum import BIN_BITS, HIGHEST_BIN, LOWEST_BIN, Digits, ExactSum
from fedquilt_common.errors import PayloadError

_HEAD: Final = struct.Struct("<hH")
_LENGTH: Final = struct.Struct("<I")
_ZERO, _PLAIN, _DEFLATED = range(3)
_PER_BIN: Final = BIN_BITS // 8
_LOWEST, _BEYOND = LOWEST_BIN * _PER_BIN, (HIGHEST_BIN + 1) * _PER_BIN

Plane = NDArray[np.uint8]


def encode_block(total: ExactSum) -> bytes:
    """Return the bytes of exact sums; equal sums have equal bytes."""
    digits = total.digits()
    if not len(digits.rows):
        return _HEAD.pack(0, 0)
    negative, rows = _split_signs(digits.rows)
    planes = np.concatenate([_cut_row(row) for row in rows])
    used = np.flatnonzero(planes.any(1))
    low, planes = int(used[0]), planes[used[0] : used[-1] + 1]
    parts = [_HEAD.pack(digits.first * _PER_BIN + low, len(planes)), _pack(np.packbits(negative))]
    return b"".join([*parts, *(_pack(plane) for plane in planes)])


def _split_signs(rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which sums are negative, and the digits of their absolute values, from 0 to 2^32 - 1."""
    signs = np.zeros(rows.shape[1], np.int64)
    for row in rows[::-1]:  # the highest digit that is not 0 decides
        signs = np.where(signs == 0, np.sign(row), signs)
    carry, positive = np.zeros(rows.shape[1], np.int64), np.empty_like(rows)
    for at, row in enumerate(rows):
        digit = np.where(signs < 0, -row, row) + carry
        carry = digit >> BIN_BITS
        positive[at] = digit - (carry << BIN_BITS)
    return signs < 0, positive


def _cut_row(row: NDArray[np.int64]) -> Plane:
    return np.ascontiguousarray(row.astype("<u4").view(np.uint8).reshape(-1, _PER_BIN).T)


def _pack(plane: Plane) -> bytes:
    if not plane.any():
        return bytes([_ZERO])
    content = plane.tobytes()
    squeezed = deflate(content)
    if _LENGTH.size + len(squeezed) < len(content):
        return bytes([_DEFLATED]) + _LENGTH.pack(len(squeezed)) + squeezed
    return bytes([_PLAIN]) + content


def count_most_bytes(size: int) -> int:
    """Return the most bytes of a block of ``size`` numbers."""
    planes = 1 + _BEYOND - _LOWEST  # with that of the signs, each with its kind
    return _HEAD.size + planes * (1 + size)


def decode_block(content: bytes, size: int) -> ExactSum:
    """Return the exact sums of a block of ``size`` numbers.

    Raises:
        PayloadError: the bytes are not those of such a block.
    """
    reader = _PlaneReader(content)
    low, count = _HEAD.unpack(reader.take(_HEAD.size))
    if not (low >= _LOWEST and low + count <= _BEYOND):
        raise PayloadError(f"a sum of {count} planes from {low} on is beyond what a sum can have")
    if not count:
        reader.end()
        return ExactSum(size)
    negative = np.unpackbits(reader.plane(-(-size // 8)), count=size).astype(bool)
    first, before = low // _PER_BIN, low % _PER_BIN
    bins = -(-(before + count) // _PER_BIN)
    planes = np.zeros((bins * _PER_BIN, size), np.uint8)
    for at in range(before, before + count):
        planes[at] = reader.plane(size)
    reader.end()
    rows = np.stack([_join_row(planes[at : at + _PER_BIN]) for at in range(0, len(planes), _PER_BIN)])
    return ExactSum.from_digits(size, Digits(first, np.where(negative, -rows, rows)))


def _join_row(planes: Plane) -> NDArray[np.int64]:
    return np.ascontiguousarray(planes.T).view("<u4").reshape(-1).astype(np.int64)


class _PlaneReader:
    """Reads the parts of a block, and nothing beyond its end.

    Args:
        content: the block.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._content):
            raise PayloadError("a block of a sum is shorter than its parts")
        self._at += count
        return self._content[self._at - count : self._at]

    def plane(self, size: int) -> Plane:
        kind = self.take(1)[0]
        if kind == _ZERO:
            return np.zeros(size, np.uint8)
        if kind not in (_PLAIN, _DEFLATED):
            raise PayloadError(f"a plane of a sum has the kind {kind}, which there is not")
        plain = self.take(size) if kind == _PLAIN else inflate(self.take(*_LENGTH.unpack(self.take(4))), size)
        if len(plain) != size:
            raise PayloadError(f"a plane of a sum has {len(plain)} bytes instead of {size}")
        return np.frombuffer(plain, np.uint8)

    def end(self) -> None:
        if self._at != len(self._content):
            raise PayloadError("a block of a sum is longer than its parts")


def inflate(content: bytes, most: int) -> bytes:
    """Return deflated bytes as they were, at most ``most``; memory is not taken for more.

    Raises:
        PayloadError: they are not deflated, or there are more.
    """
    inflater = zlib.decompressobj(-15)
    try:
        plain = inflater.decompress(content, most + 1)
    except zlib.error as error:
        raise PayloadError(f"a part of a sum cannot be inflated: {error}") from None
    if len(plain) > most or not inflater.eof or inflater.unused_data:
        raise PayloadError(f"a part of a sum does not end, or has more than {most} bytes")
    return plain


def deflate(content: bytes) -> bytes:
    """Return the bytes deflated, for ``inflate``."""
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(content) + deflater.flush()
