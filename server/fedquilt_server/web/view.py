"""Values that the page derives from a snapshot. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.scores import (
    Measure,
    Score,
    choose_measure,
    measured_scores,
    median_or_none,
    seconds_left,
)
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.units import is_number


@dataclass(frozen=True)
class Summary:
    """The values of the tiles. None means that a value is not known yet."""

    measure: Measure
    title: str
    latest: Score | None
    best: Score | None
    personal: Score | None
    best_personal: Score | None
    loss: Score | None
    lowest: Score | None
    seconds: float | None
    train_share: float | None
    bytes_down: float | None
    bytes_up: float | None
    total_down: int
    total_up: int
    finished: int
    seconds_left: float | None
    online: int


def summarise(snapshot: Snapshot) -> Summary:
    """Compute the values of all tiles."""
    history = snapshot.history
    measure = choose_measure(history)
    scores, losses = measured_scores(history, measure), measured_scores(history, "loss")
    personal = measured_scores((row for row in history if row.has_both), "personal_accuracy")
    seconds = median_or_none(row.seconds for row in history)
    return Summary(
        measure=measure,
        title=_title(history, measure),
        latest=scores[-1] if scores else None,
        best=max(scores, key=_value, default=None),
        personal=personal[-1] if personal else None,
        best_personal=max(personal, key=_value, default=None),
        loss=losses[-1] if losses else None,
        lowest=min(losses, key=_value, default=None),
        seconds=seconds,
        train_share=_training_share(history),
        bytes_down=median_or_none(row.bytes_down for row in history),
        bytes_up=median_or_none(row.bytes_up for row in history),
        total_down=sum(row.bytes_down for row in history),
        total_up=sum(row.bytes_up for row in history),
        finished=history[-1].round if history else 0,
        seconds_left=seconds_left(snapshot, seconds),
        online=sum(board.online for board in snapshot.boards),
    )


def _title(history: Sequence[RoundResult], measure: Measure) -> str:
    """Return the title of the tile with the main score."""
    if measure == "r2":
        return "R²"
    if any(row.personal_accuracy is not None for row in history):
        return "Global accuracy" if any(row.has_both for row in history) else "Personal accuracy"
    return "Accuracy"


def _value(score: Score) -> float:
    return score[1]


def _training_share(history: Sequence[RoundResult]) -> float | None:
    """Return the share of the elapsed time that was spent on training."""
    total = sum(row.seconds for row in history)
    return sum(row.train_seconds for row in history) / total if total else None


def curve_points(history: Sequence[RoundResult], start: int) -> dict[str, object]:
    """Return the points from index ``start`` on, which the page's script appends to the curves.

    None is a gap in a curve.
    """
    measure, rows = choose_measure(history), history[start:]
    return {
        "start": start,
        "measure": measure,
        "round": [row.round for row in rows],
        "value": [_number_or_none(getattr(row, measure)) for row in rows],
        "personal": [_number_or_none(row.personal_accuracy if row.has_both else None) for row in rows],
        "loss": [_number_or_none(row.loss) for row in rows],
    }


def _number_or_none(value: float | None) -> float | None:
    """Replace NaN and infinity by None, because JSON has no such numbers. A loss that diverged becomes a gap."""
    return value if is_number(value) else None


def count_unchanged(before: Sequence[RoundResult], now: Sequence[RoundResult]) -> int:
    """Return how many of the points in ``before`` are still valid: all or none."""
    return len(before) if list(now[: len(before)]) == list(before) else 0


Health = Literal["ok", "failed", "broker-lost"]


def health_status(snapshot: Snapshot) -> Health:
    """Return the status for the health check."""
    if snapshot.phase == "failed":
        return "failed"
    return "ok" if snapshot.broker_connected or snapshot.phase == "finished" else "broker-lost"
