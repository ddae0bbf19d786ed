"""The bitmap of missing chunks."""

from __future__ import annotations

import pytest

from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.bitmaps import ChunkSet, decode_bitmap, encode_bitmap


@pytest.mark.parametrize(
    ("indices", "count", "bitmap"),
    [([], 0, ""), ([], 1, "AA=="), ([0], 1, "AQ=="), ([7], 8, "gA=="), ([8], 9, "AAE="), ([0, 9], 10, "AQI=")],
)
def test_bit_i_of_byte_i_div_8(indices: list[int], count: int, bitmap: str) -> None:
    assert encode_bitmap(indices, count) == bitmap
    assert decode_bitmap(bitmap, count) == indices


def test_round_trip_of_a_set() -> None:
    indices = set(range(0, 1000, 7)) | {999}
    assert decode_bitmap(encode_bitmap(indices, 1000), 1000) == sorted(indices)


@pytest.mark.parametrize("first", [0, 1, 8, 11, 20])
def test_a_set_holds_its_first_chunks_and_those_that_are_added(first: int) -> None:
    chunks = ChunkSet(20, first)
    assert [index for index in range(20) if index in chunks] == list(range(first))
    for index in (5, 19):
        chunks.add(index)
    assert {index for index in range(20) if index in chunks} == {*range(first), 5, 19}


def test_bits_past_the_end_are_no_chunks() -> None:
    assert decode_bitmap("/w==", 3) == [0, 1, 2]


@pytest.mark.parametrize(("bitmap", "count"), [("AA==", 9), ("AAA=", 8), ("", 1), ("AA==", 0), ("AA==", 10**9)])
def test_wrong_length(bitmap: str, count: int) -> None:
    with pytest.raises(PayloadError, match=f"bytes for {count} chunks"):
        decode_bitmap(bitmap, count)


@pytest.mark.parametrize("bitmap", ["A", "AA=", "AA==AA==", "A\n==", "\u00e9\u00e9==", "AA=A"])
def test_not_base64(bitmap: str) -> None:
    with pytest.raises(PayloadError, match="not base64"):
        decode_bitmap(bitmap, 8)
