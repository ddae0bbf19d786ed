"""Sets of chunks as bitmaps, in memory and as base64: bit i % 8 of byte i // 8 is chunk i."""

from __future__ import annotations

from base64 import b64decode, b64encode

from fedquilt_common.errors import PayloadError


class ChunkSet:
    """A set of chunks that takes one bit for each chunk that it may hold.

    Args:
        count: number of chunks that it may hold.
        first: number of the first chunks, which it holds from the start.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        self._bits = bytearray((count + 7) // 8)
        self._bits[: first // 8] = b"\xff" * (first // 8)
        for index in range(first // 8 * 8, first):
            self.add(index)

    def add(self, index: int) -> None:
        """Add the chunk ``index``."""
        self._bits[index // 8] |= 1 << (index % 8)

    def __bytes__(self) -> bytes:
        """The bitmap."""
        return bytes(self._bits)

    def __contains__(self, index: int) -> bool:
        return bool(self._bits[index // 8] >> (index % 8) & 1)


def encode_bitmap(indices: set[int] | list[int], count: int) -> str:
    """Base64 of a bitmap of ``count`` bits with the bits ``indices`` set."""
    chunks = ChunkSet(count)
    for index in indices:
        chunks.add(index)
    return b64encode(bytes(chunks)).decode()


def decode_bitmap(bitmap: str, count: int) -> list[int]:
    """Indices of the set bits, in order.

    Raises:
        PayloadError: the text is not base64, or is not a bitmap of ``count`` bits.
    """
    try:
        bits = b64decode(bitmap, validate=True)
    except ValueError:
        raise PayloadError("bitmap is not base64") from None
    if len(bits) != (count + 7) // 8:
        raise PayloadError(f"bitmap has {len(bits)} bytes for {count} chunks")
    return [i for i in range(count) if bits[i // 8] >> (i % 8) & 1]
