"""The points of the page's curves, thinned to what a screen can show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.units import is_number

COLUMNS: Final = (
    "round", "value", "personal", "loss", "down", "up",
    "sending", "training", "waiting", "averaging", "joules", "bytes", "seconds",
)  # fmt: skip
"""Columns of a point; ``bytes`` and ``seconds`` are totals since the run began."""
_EXTREMES: Final = tuple(
    map(COLUMNS.index, ("value", "personal", "loss", "down", "up", "training", "waiting", "joules"))
)
"""Columns whose highest and lowest value of a bucket stay when the curves are thinned."""
RAW_POINTS: Final = 150
"""Runs of up to this length are not thinned; nor are the latest rounds of a longer run."""
BUCKETS: Final = 40

ScreenPoint = tuple[float | None, ...]
"""The values of one round in the order of ``COLUMNS``; None is a gap."""


@dataclass(frozen=True)
class Curves:
    """All curves of a run.

    Attributes:
        points: what the page shows.
        everything: one point for each row of ``history``.
        thinned: the first ``settled`` of them, thinned.
    """

    metric: Metric
    points: tuple[ScreenPoint, ...] = ()
    history: Sequence[RoundResult] = ()
    everything: tuple[ScreenPoint, ...] = ()
    settled: int = 0
    thinned: tuple[ScreenPoint, ...] = ()

    @cached_property
    def text(self) -> str:
        """All points as JSON, as ``since`` returns them."""
        return encode_json(self.since(None))

    def knows(self, column: str) -> bool:
        """Return whether any point has a value in one of the ``COLUMNS``."""
        place = COLUMNS.index(column)
        return any(point[place] is not None for point in self.points)

    def since(self, before: Curves | None) -> dict[str, object]:
        """Return the points that ``before`` lacks, by column; ``start`` is how many of its points stay."""
        start = count_common(before.points, self.points) if before and before.metric == self.metric else 0
        rows = [[_significant(value) for value in point] for point in self.points[start:]]
        columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in COLUMNS)
        return {"start": start, **describe_metric(self.metric), **dict(zip(COLUMNS, columns, strict=True))}


def describe_metric(metric: Metric) -> dict[str, object]:
    """Return what the page needs to draw a metric: its name, its heading, and whether it is a share."""
    return {"measure": metric.name, "title": metric.title, "share": metric.unit == "share"}


def encode_json(value: object) -> str:
    """Encode a value as short JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def count_common(before: Sequence[object], now: Sequence[object]) -> int:
    """Count the items that two sequences have in common at their beginning."""
    pairs = enumerate(zip(before, now, strict=False))
    return next((i for i, (a, b) in pairs if a is not b and a != b), min(len(before), len(now)))


def make_curves(history: Sequence[RoundResult], metric: Metric, before: Curves | None = None) -> Curves:
    """Return the points of all curves.

    Of a long run, the settled rounds become buckets; each keeps the highest and the lowest value of each curve. The
    buckets change only every ``RAW_POINTS`` rounds, so that a new round adds one point.

    Args:
        before: earlier curves; what they have in common with the new ones is not computed again.
    """
    known = before if before and before.metric == metric and _continues(before.history, history) else Curves(metric)
    everything = (*known.everything, *_new_points(history[len(known.everything) :], known))
    settled = max(0, len(everything) // RAW_POINTS - 1) * RAW_POINTS
    thinned = known.thinned if settled == known.settled else tuple(_thin(everything[:settled]))
    return Curves(metric, thinned + everything[settled:], history, everything, settled, thinned)


def _continues(before: Sequence[RoundResult], now: Sequence[RoundResult]) -> bool:
    return len(before) <= len(now) and all(a is b for a, b in zip(before, now, strict=False))


def _new_points(rows: Sequence[RoundResult], known: Curves) -> Iterator[ScreenPoint]:
    size, time = known.everything[-1][-2:] if known.everything else (0.0, 0.0)
    for row in rows:
        size = (size or 0.0) + row.bytes_down + row.bytes_up
        time = (time or 0.0) + _finite(row.running_seconds)
        yield (row.round, *map(_finite_or_none, _values(row, known.metric)), size, time)


def _values(row: RoundResult, metric: Metric) -> tuple[float | None, ...]:
    personal = row.value(f"personal_{metric.name}") if row.has_both else None
    return (
        row.value(metric.name),
        personal,
        row.loss,
        row.bytes_down,
        row.bytes_up,
        *split_seconds(row).values(),
        row.joules,
    )


def split_seconds(row: RoundResult) -> dict[str, float]:
    """Split a round's time while the coordinator ran. Waiting is the rest: for the slowest board, for the network."""
    evaluating = 0.0 if row.evaluated_afterwards else _finite(row.evaluate_seconds)
    busy = {
        "sending": max(0.0, _finite(row.sending_seconds)),
        "training": max(0.0, _finite(row.train_seconds)),
        "waiting": 0.0,
        "averaging": max(0.0, _finite(row.averaging_seconds) + evaluating),
    }
    return {**busy, "waiting": max(0.0, _finite(row.running_seconds) - sum(busy.values()))}


def _finite(value: float) -> float:
    return value if is_number(value) else 0.0


def _finite_or_none(value: float | None) -> float | None:
    """Replace NaN and infinity by None, because JSON has no such numbers. A loss that diverged becomes a gap."""
    return value if is_number(value) else None


def _significant(value: float | None) -> float | None:
    """Round to six digits, for short JSON."""
    return None if value is None else float(f"{value:.6g}")


def _thin(points: Sequence[ScreenPoint]) -> Iterator[ScreenPoint]:
    """Yield at most two points for each bucket and curve."""
    size = max(1, -(-len(points) // BUCKETS))
    for start in range(0, len(points), size):
        yield from _extremes(points[start : start + size])


def _extremes(bucket: Sequence[ScreenPoint]) -> Iterator[ScreenPoint]:
    """Yield the points of a bucket that are the highest or the lowest of a curve."""
    kept: set[int] = set()
    for column in _EXTREMES:
        known = [(value, i) for i, point in enumerate(bucket) if (value := point[column]) is not None]
        kept |= {min(known)[1], max(known)[1]} if known else set()
    yield from (bucket[i] for i in sorted(kept))
