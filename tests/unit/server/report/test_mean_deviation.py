"""Means, deviations and quantiles against numbers that were computed by hand."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedquilt_common.learning_tasks.metrics import LARGEST
from fedquilt_server.report.mean_deviation import MeanDeviation, Quantiles, mean_deviation, quantiles

NUMBERS = st.lists(st.floats(-LARGEST, LARGEST), min_size=1, max_size=30)


def test_mean_and_sample_deviation() -> None:
    """Deviations from the mean 5: -3, -1, -1, -1, 0, 0, 2, 4; their squares sum to 32; 32 / 7."""
    assert mean_deviation([2, 4, 4, 4, 5, 5, 7, 9]) == MeanDeviation(5.0, math.sqrt(32 / 7), 8)


def test_one_value_has_no_deviation_and_equal_ones_have_0() -> None:
    assert mean_deviation([0.1]) == MeanDeviation(0.1, None, 1)
    assert mean_deviation([0.1] * 3) == MeanDeviation(0.1, 0.0, 3)


def test_unknown_values_are_left_out_and_n_tells() -> None:
    assert mean_deviation([None, 1.0, None, 3.0]) == MeanDeviation(2.0, math.sqrt(2), 2)
    assert mean_deviation([None]) is None
    assert mean_deviation([]) is None


@given(NUMBERS)
@example([0.03] * 7)  # the sum of the sevenths is larger
def test_the_mean_is_within_the_values_and_all_is_finite(values: list[float]) -> None:
    found = mean_deviation(values)
    assert found is not None
    assert min(values) <= found.mean <= max(values)
    assert found.deviation is None or 0 <= found.deviation < math.inf


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_the_deviation_is_that_of_the_standard_library(values: list[float]) -> None:
    found = mean_deviation(values)
    assert found is not None
    assert found.deviation == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)


def test_quantiles_by_hand() -> None:
    assert quantiles([4, 1, 3, 2, 5]) == Quantiles(1, 2, 3, 4, 5, 5)
    assert quantiles([0, 1]) == Quantiles(0, 0.25, 0.5, 0.75, 1, 2)
    assert quantiles([7]) == Quantiles(7, 7, 7, 7, 7, 1)
    assert quantiles([]) is None
