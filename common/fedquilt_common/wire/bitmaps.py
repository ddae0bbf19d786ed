"""Sets of chunks as base64 bitmaps: bit i % 8 of byte i // 8 is chunk i."""

from __future__ import annotations

from base64 import b64decode, b64encode

from fedquilt_common.errors import PayloadError


def encode_bitmap(indices: set[int] | list[int], count: int) -> str:
    """Base64 of a bitmap of ``count`` bits with the bits ``indices`` set."""
    bits = bytearray((count + 7) // 8)
    for index in indices:
        bits[index // 8] |= 1 << (index % 8)
    return b64encode(bits).decode()


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
