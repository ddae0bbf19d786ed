"""What the page shows beyond the snapshot's own fields: pure functions of the snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.web.text import known

Measure = Literal["accuracy", "r2"]
Score = tuple[int, float]
"""A round and what was measured in it."""


@dataclass(frozen=True)
class Summary:
    """The numbers of the tiles; None is what cannot be told yet."""

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


def measure_of(history: Sequence[RoundResult]) -> Measure:
    """What the run is judged by: regression runs report r2 and no accuracy."""
    has_r2 = any(row.r2 is not None for row in history)
    return "r2" if has_r2 and all(row.accuracy is None for row in history) else "accuracy"


def scores(history: Iterable[RoundResult], field: str) -> list[Score]:
    """The rounds in which ``field`` was measured, and was a number."""
    pairs = ((row.round, getattr(row, field)) for row in history)
    return [(at, value) for at, value in pairs if known(value)]


def summary(snapshot: Snapshot) -> Summary:
    """All the tiles of one snapshot."""
    history = snapshot.history
    measure = measure_of(history)
    measured, losses = scores(history, measure), scores(history, "loss")
    own = scores((row for row in history if row.has_both), "personal_accuracy")
    seconds = _median(row.seconds for row in history)
    return Summary(
        measure=measure,
        title=_title(history, measure),
        latest=measured[-1] if measured else None,
        best=max(measured, key=_value, default=None),
        personal=own[-1] if own else None,
        best_personal=max(own, key=_value, default=None),
        loss=losses[-1] if losses else None,
        lowest=min(losses, key=_value, default=None),
        seconds=seconds,
        train_share=_share(history),
        bytes_down=_median(row.bytes_down for row in history),
        bytes_up=_median(row.bytes_up for row in history),
        total_down=sum(row.bytes_down for row in history),
        total_up=sum(row.bytes_up for row in history),
        finished=history[-1].round if history else 0,
        seconds_left=_left(snapshot, seconds),
        online=sum(board.online for board in snapshot.boards),
    )


def _title(history: Sequence[RoundResult], measure: Measure) -> str:
    """Of the score that all runs have."""
    if measure == "r2":
        return "R²"
    if any(row.personal_accuracy is not None for row in history):
        return "Global accuracy" if any(row.has_both for row in history) else "Personal accuracy"
    return "Accuracy"


def _value(score: Score) -> float:
    return score[1]


def _median(values: Iterable[float]) -> float | None:
    listed = list(values)
    return median(listed) if listed else None


def _share(history: Sequence[RoundResult]) -> float | None:
    """The part of all the time so far that went into training."""
    total = sum(row.seconds for row in history)
    return sum(row.train_seconds for row in history) / total if total else None


def _left(snapshot: Snapshot, seconds: float | None) -> float | None:
    """A guess of the time until the last round is done."""
    if seconds is None or snapshot.phase in ("finished", "failed"):
        return None
    rounds_left = snapshot.rounds - snapshot.history[-1].round
    return seconds * rounds_left if rounds_left > 0 else None


def curve(history: Sequence[RoundResult], start: int) -> dict[str, object]:
    """The points from index ``start`` on, as the page's script appends them; null is a gap in the curve."""
    measure, rows = measure_of(history), history[start:]
    return {
        "start": start,
        "measure": measure,
        "round": [row.round for row in rows],
        "value": [_number(getattr(row, measure)) for row in rows],
        "personal": [_number(row.personal_accuracy if row.has_both else None) for row in rows],
        "loss": [_number(row.loss) for row in rows],
    }


def _number(value: float | None) -> float | None:
    """JSON has no NaN; a loss that diverged is a gap."""
    return value if known(value) else None


def kept(before: Sequence[RoundResult], now: Sequence[RoundResult]) -> int:
    """How many of the points sent ``before`` are still right."""
    return len(before) if list(now[: len(before)]) == list(before) else 0


Health = Literal["ok", "failed", "broker-lost"]


def health(snapshot: Snapshot) -> Health:
    """One word for a health check."""
    if snapshot.phase == "failed":
        return "failed"
    return "ok" if snapshot.broker_connected or snapshot.phase == "finished" else "broker-lost"
