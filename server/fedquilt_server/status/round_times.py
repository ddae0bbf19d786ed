"""The time of finished rounds, without that in which the coordinator did not run. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.units import duration


@dataclass(frozen=True)
class RoundTimes:
    """Times of finished rounds in seconds of wall-clock time in which the coordinator ran.

    Attributes:
        median: of a round; None before the first one.
        total: of all rounds.
        training_share: the share of ``total`` in which the busiest agent trained; None without time.
        away: the time that is left out, because the coordinator did not run.
    """

    median: float | None
    total: float
    training_share: float | None
    away: float


def measure_times(rows: Sequence[RoundResult]) -> RoundTimes:
    """Return the times of finished rounds."""
    total = sum(row.running_seconds for row in rows)
    training = sum(min(row.train_seconds, row.running_seconds) for row in rows)  # agents train on without it
    return RoundTimes(
        median=median_or_none(row.running_seconds for row in rows),
        total=total,
        training_share=training / total if total else None,
        away=sum(row.away_seconds for row in rows),
    )


def median_or_none(values: Iterable[float]) -> float | None:
    """Return the median; None without a value."""
    numbers = list(values)
    return median(numbers) if numbers else None


def describe_away(seconds: float) -> str:
    """Return how long the coordinator did not run in the rounds; empty if it always ran, or if the time is damaged."""
    if not 0 < seconds < math.inf:
        return ""
    return f"the coordinator did not run in {duration(seconds)} of the rounds; the times leave this out"
