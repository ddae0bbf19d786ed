"""The comparison of two machines' numbers notices a single other bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.arm64.compare import Difference, compare, differences, table

ONE: NDArray[np.float32] = np.array([1.0, -2.0, 0.0, 4.0], np.float32)


def changed(index: int, value: Any) -> NDArray[np.float32]:
    other = ONE.copy()
    other[index] = value
    return np.asarray(other, np.float32)


def test_equal_arrays_have_no_difference() -> None:
    assert compare("a", ONE, ONE.copy()) == Difference("a", 4, 0.0, 0, 0.0)


def test_neighbours_are_one_ulp_apart_also_around_zero() -> None:
    assert compare("a", ONE, changed(1, np.nextafter(np.float32(-2), np.float32(0)))).ulp == 1
    tiny = np.nextafter(np.float32(0), np.float32(1))
    assert compare("a", changed(2, -tiny), changed(2, tiny)).ulp == 2
    found = compare("a", ONE, changed(3, 5.0))
    assert (found.different, found.relative, found.is_equal) == (0.25, 0.25, False)


def test_the_two_zeros_have_other_bits() -> None:
    assert not compare("a", ONE, changed(2, -0.0)).is_equal


def test_what_is_missing_or_has_another_form_differs_everywhere() -> None:
    for other in (None, ONE[:3], ONE.astype(np.float64)):
        assert compare("a", ONE, other) == Difference("a", 4, 1.0, None, float("inf"))
    whole = np.arange(4, dtype=np.uint8)
    assert compare("a", whole, whole[::-1].copy()).different == 1.0


def test_training_is_measured_against_its_change() -> None:
    one: dict[str, Any] = {"start/mlp": ONE, "step/mlp/fp32": changed(0, 1.5), "agreed/seeds": np.arange(3)}
    other: dict[str, Any] = {**one, "step/mlp/fp32": changed(0, 1.25), "labels/new": ONE}
    found = {each.name: each for each in differences(one, other)}
    assert found.keys() == {"step/mlp/fp32", "agreed/seeds", "labels/new"}
    assert found["step/mlp/fp32"].relative == 0.5
    assert found["agreed/seeds"].is_equal
    assert "| step/mlp/fp32 | 4 | 25.0% |" in table(found.values())
