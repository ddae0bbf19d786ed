"""Exact sums: what ``math.fsum`` returns, for any numbers, in any order and grouping, also through their encoding."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.aggregation import exact_sum
from fedquilt_common.aggregation.exact_sum import ExactSum, components
from fedquilt_common.errors import NotFiniteError, PayloadError, SumOverflowError
from fedquilt_common.partial_sums.digit_planes import decode_block, encode_block

EDGES = (0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1.0, 2.0**53, -(2.0**53), 2.0**-53, 1 + 2.0**-52, 1e308)


def _number(rng: Random) -> float:
    """Return any finite number, a usual one, an edge or a power of two."""
    match rng.randrange(4):
        case 0:
            (found,) = struct.unpack("<d", rng.randbytes(8))
            return float(found) if math.isfinite(found) else 0.0
        case 1:
            return rng.uniform(-10, 10)
        case 2:
            return rng.choice(EDGES)
        case _:
            return rng.choice((1.0, -1.0)) * 2.0 ** rng.randint(-1074, 1000)


def _columns(size: int, count: int, seed: int) -> list[list[float]]:
    """Return some numbers for each of some elements; some are taken away again."""
    rng = Random(seed)
    rows = [[_number(rng) for _ in range(size)] for _ in range(count)]
    return [*rows, *([-x for x in row] for row in rows if rng.random() < 0.5)]


COLUMNS = st.builds(_columns, st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**32 - 1))


def sum_of(rows: Sequence[Sequence[float]], size: int) -> ExactSum:
    total = ExactSum(size)
    for row in rows:
        total.add(np.array(row))
    return total


def fsums(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return what ``math.fsum`` returns; it overflows where it adds three numbers near its end, so divide before."""
    found = [math.fsum(x * 2.0**-8 if abs(x) > 1e300 else 0.0 for x in column) for column in zip(*rows, strict=True)]
    if any(abs(total) * 2.0**8 > 1.7e308 for total in found):
        return []
    try:
        return [math.fsum(column) for column in zip(*rows, strict=True)]
    except OverflowError:
        return []


@given(COLUMNS)
def test_a_sum_is_that_of_fsum(rows: list[list[float]]) -> None:
    if expected := fsums(rows):
        found = sum_of(rows, len(rows[0])).round()
        assert [x.hex() for x in found] == [(x + 0.0).hex() for x in expected]


@given(COLUMNS, st.randoms(use_true_random=False), st.integers(0, 8))
def test_neither_order_nor_grouping_change_it(rows: list[list[float]], random: object, cut: int) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    grouped = sum_of(shuffled[:cut], len(rows[0]))
    grouped.merge(sum_of(shuffled[cut:], len(rows[0])))
    together = ExactSum(len(rows[0]))
    together.add(np.array(rows))
    assert encode_block(grouped) == encode_block(together) == encode_block(sum_of(rows, len(rows[0])))


@given(COLUMNS)
def test_a_part_is_the_sum_of_its_numbers(rows: list[list[float]]) -> None:
    together = ExactSum(2 * len(rows[0]))
    together.add(np.array([[*row, *row[::-1]] for row in rows]))
    expected = sum_of([row[::-1] for row in rows], len(rows[0]))
    assert encode_block(together.part(len(rows[0]), 2 * len(rows[0]))) == encode_block(expected)


@given(COLUMNS)
def test_the_encoding_loses_nothing(rows: list[list[float]]) -> None:
    total = sum_of(rows, len(rows[0]))
    content = encode_block(total)
    found = decode_block(content, len(rows[0]))
    assert encode_block(found) == content
    found.merge(sum_of([[-x for x in row] for row in rows], len(rows[0])))
    assert not len(found.digits().rows)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([2.0**53, 1.0, 2.0**-1000], 2.0**53 + 2),  # just above a tie
        ([2.0**53, 1.0], 2.0**53),  # a tie, to even
        ([2.0**53, 3.0], 2.0**53 + 4),  # a tie, to even
        ([2.0**53, 1.0, -(2.0**-1000)], 2.0**53),  # just below a tie
        ([2.0**53 + 2, 1.0, -(2.0**-1000)], 2.0**53 + 2),  # the same, where even is above
        ([2.0**53, -0.5], 2.0**53),  # a tie where the numbers below are closer
        ([2.0**53, -0.5, -(2.0**-1000)], 2.0**53 - 1),
        ([1e308, -1e308, 1.0], 1.0),
        ([1e308, 1e308, -1e308], 1e308),
        ([5e-324, 5e-324], 1e-323),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_ties_cancellation_and_the_ends_of_the_range(terms: list[float], expected: float) -> None:
    found = sum_of([[x] for x in terms], 1).round()[0]
    assert found.hex() == expected.hex()


def test_a_sum_beyond_fp64_is_an_error_only_at_the_end() -> None:
    total = sum_of([[1.7e308], [1.7e308]], 1)
    with pytest.raises(SumOverflowError, match="beyond the largest"):
        total.round()
    total.add(np.array([-1.7e308]))
    assert total.round()[0] == 1.7e308


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NotFiniteError):
        ExactSum(2).add(np.array([1.0, value]))
    with pytest.raises(NotFiniteError):
        ExactSum(1).add_products(np.array([[1e308]]), np.array([1e10]))


def test_carries_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bins pass their carries on long before fp64 cannot hold them."""
    monkeypatch.setattr(exact_sum, "_MOST", 4)
    rows = [[float(x), -1.0 / (x + 1)] for x in range(50)]
    total = ExactSum(2)
    total.add(np.array(rows))
    for row in rows:
        total.merge(sum_of([row, row], 2))
    assert [*total.round()] == [math.fsum([*column] * 3) for column in zip(*rows, strict=True)]


@given(st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=20))
def test_weights_add_up_exactly(weights: list[float]) -> None:
    found = components(weights)
    assert math.fsum([*found, *(-weight for weight in weights)]) == 0
    assert components(sorted(weights)) == found


@given(st.binary(max_size=60), st.integers(1, 9))
def test_other_bytes_are_refused_or_are_a_sum(content: bytes, size: int) -> None:
    try:
        found = decode_block(content, size)
    except PayloadError:
        return
    assert encode_block(decode_block(encode_block(found), size)) == encode_block(found)


@given(st.data(), COLUMNS)
def test_a_damaged_encoding_is_refused_or_is_a_sum(data: st.DataObject, rows: list[list[float]]) -> None:
    content = bytearray(encode_block(sum_of(rows, len(rows[0]))))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_block(bytes(content), len(rows[0])).digits()
    except PayloadError:
        return


def test_a_plane_that_inflates_to_more_than_its_numbers_is_refused() -> None:
    bomb = encode_block(sum_of([[1.5] * 30_000], 30_000))
    with pytest.raises(PayloadError, match="more than"):
        decode_block(bomb, 10)
