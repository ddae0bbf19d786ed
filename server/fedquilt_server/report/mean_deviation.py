"""Mean and standard deviation over runs, exact in the order of the values and safe for huge ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MeanDeviation:
    """The mean of ``n`` values and their sample standard deviation (divisor n - 1), which one value does not have."""

    mean: float
    deviation: float | None
    n: int


def mean_deviation(values: Iterable[float | None]) -> MeanDeviation | None:
    """Return mean and deviation of the values that are there; None if none is."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    mean = math.fsum(value / len(found) for value in found)
    mean = min(max(mean, min(found)), max(found))  # rounding must not lead out of the values
    return MeanDeviation(mean, _deviation(found, mean), len(found))


def _deviation(values: list[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    scale = max(abs(value - mean) for value in values)
    if not scale:
        return 0.0
    return scale * math.sqrt(math.fsum(((value - mean) / scale) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Quantiles:
    """Least value, quartiles and largest value of ``n`` values, with linear interpolation."""

    low: float
    first: float
    median: float
    third: float
    high: float
    n: int


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """Return the quantiles of the values; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    first, median, third = (_at(ordered, share) for share in (0.25, 0.5, 0.75))
    return Quantiles(ordered[0], first, median, third, ordered[-1], len(ordered))


def _at(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
