"""Numbers of a column: one unit for all, and about three significant digits for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_server.library.scales import CellKind, deviation_text, number_text, scale_of
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.report.table import Column, ReportTable, texts
from fedquilt_server.status.units import DASH


def column(kind: CellKind, values: Sequence[float]) -> list[str]:
    scale = scale_of(kind, values)
    return [scale.symbol, *(number_text(value, scale) for value in values)]


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        ("number", [0.5634, 83.1], ["", "0.563", "83.1"]),
        ("number", [0.5634, 1e5], ["", "0.563", "100000"]),
        ("number", [0.09996, 9.996, 99.96], ["", "0.100", "10.0", "100"]),
        ("number", [0.5634, math.inf, 0.0, -0.0], ["", "0.563", DASH, "0", "0"]),
        ("number", [1.5e-9, 2e20, -3.25], ["", "1.50e-09", "2.00e+20", "-3.25"]),
        ("bytes", [12_345, 5e9], ["MB", "0.0123", "5000"]),
        ("bytes", [1.2e9, 5e9], ["GB", "1.20", "5.00"]),
        ("seconds", [1.5, 40_000], ["s", "1.50", "40000"]),
        ("seconds", [36_000, 40_000], ["h", "10.0", "11.1"]),
        ("share", [0.93421, 0.999996, 1e-5, 0, 1], ["%", "93.42", "99.9996", "0.001", "0.00", "100.00"]),
        ("points", [-0.00004, 0.1234, -1.0], ["points", "0.00", "12.34", "-100.00"]),
        ("count", [7, 1234], ["", "7", "1234"]),
    ],
)
def test_a_number_keeps_its_digits_beside_others(kind: CellKind, values: list[float], shown: list[str]) -> None:
    assert column(kind, values) == shown


@given(st.sampled_from(["bytes", "joules", "seconds", "number"]),
       st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=5))  # fmt: skip
def test_each_number_parses_back(kind: CellKind, values: list[float]) -> None:
    scale = scale_of(kind, values)
    for value in values:
        assert float(number_text(value, scale)) / scale.factor == pytest.approx(value, rel=0.0051, abs=1e-300)


def test_a_deviation_has_the_decimals_of_its_mean() -> None:
    scale = scale_of("number", [0.5634, 83.1])
    shown = [deviation_text(*pair, scale) for pair in ((0.0041, 0.5634), (40.25, 83.1), (0.5, 0.0), (2e-6, 1e-5))]
    assert shown == ["0.004", "40.3", "0.500", "2.00e-06"]


def test_a_run_that_diverged_does_not_hide_the_digits_of_the_others() -> None:
    losses = Column("loss", "loss", "number")
    rows = ((MeanDeviation(0.5634, 0.0041, 3),), (MeanDeviation(83.0, None, 1),))
    assert list(texts(ReportTable("scores", "Scores", "", (losses,), rows))) == [
        ["0.563 \N{PLUS-MINUS SIGN} 0.004"],
        ["83.0"],
    ]
