"""Values that the page derives from a snapshot. All functions are pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fedquilt_common.learning_tasks.metrics import LOSS, Metric
from fedquilt_server.library.quantities import total
from fedquilt_server.status.problems import SEVERITY, board_health, natural_key
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.round_times import RoundTimes, describe_away, measure_times, median_or_none
from fedquilt_server.status.run_energy import describe_energy
from fedquilt_server.status.scores import (
    Score,
    best_score,
    choose_metric,
    measured_scores,
    second_metrics,
    seconds_left,
)
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.status.units import DASH, duration
from fedquilt_server.web.bars import split_reply


@dataclass(frozen=True)
class OtherScore:
    """A metric besides the main one."""

    metric: Metric
    latest: Score
    best: Score


@dataclass(frozen=True)
class ResultSummary:
    """What the tiles show of the finished rounds. None means that a value is not known yet.

    Attributes:
        bytes_both: median bytes of a round, both ways; ``bytes_down`` and ``bytes_up`` are the medians of one way.
    """

    metric: Metric
    title: str
    latest: Score | None
    best: Score | None
    personal: Score | None
    best_personal: Score | None
    others: tuple[OtherScore, ...]
    loss: Score | None
    lowest: Score | None
    times: RoundTimes
    bytes_both: float | None
    bytes_down: float | None
    bytes_up: float | None
    total_down: int
    total_up: int
    joules: float | None
    energy_note: str
    finished: int


@dataclass(frozen=True)
class Summary:
    """The values of the tiles.

    Attributes:
        connected: how many boards the broker has a connection of, also if they are silent.
        states: how many boards are in each state other than online, worst first.
        has_energy: whether any energy is known.
    """

    results: ResultSummary
    seconds_left: float | None
    connected: int
    boards: int
    clients: int
    states: dict[str, int]
    has_energy: bool


def summarise(snapshot: Snapshot, results: ResultSummary) -> Summary:
    """Compute the values of all tiles from the snapshot and the summary of its rounds."""
    boards = snapshot.boards
    return Summary(
        results=results,
        seconds_left=seconds_left(snapshot, results.times.median),
        connected=sum(board.online for board in boards),
        boards=len(boards),
        clients=_count_clients(boards),
        states=_count_states(boards),
        has_energy=results.joules is not None or any(board.joules is not None for board in boards),
    )


def _count_clients(boards: Sequence[BoardStatus]) -> int:
    named = {client for board in boards for client in board.clients}
    return len(named) + sum(board.unnamed_clients for board in boards)


def _count_states(boards: Sequence[BoardStatus]) -> dict[str, int]:
    counts = Counter(board_health(board) for board in boards)
    return {state: counts[state] for state in SEVERITY if counts[state] and state != "online"}


def summarise_results(history: Sequence[RoundResult]) -> ResultSummary:
    """Compute what the tiles show of the finished rounds."""
    metric = choose_metric(history)
    scores, losses = measured_scores(history, metric.name), measured_scores(history, "loss")
    personal = measured_scores((row for row in history if row.has_both), f"personal_{metric.name}")
    return ResultSummary(
        metric=metric,
        title=_title(history, metric),
        latest=scores[-1] if scores else None,
        best=best_score(scores, metric),
        personal=personal[-1] if personal else None,
        best_personal=best_score(personal, metric),
        others=tuple(_other_scores(history)),
        loss=losses[-1] if losses else None,
        lowest=best_score(losses, LOSS),
        times=measure_times(history),
        bytes_both=median_or_none(row.bytes_down + row.bytes_up for row in history),
        bytes_down=median_or_none(row.bytes_down for row in history),
        bytes_up=median_or_none(row.bytes_up for row in history),
        total_down=sum(row.bytes_down for row in history),
        total_up=sum(row.bytes_up for row in history),
        joules=total(history, "joules"),
        energy_note=describe_energy(history),
        finished=history[-1].round if history else 0,
    )


def _other_scores(history: Sequence[RoundResult]) -> Iterator[OtherScore]:
    for metric in second_metrics(history):
        found = measured_scores(history, metric.name)
        if best := best_score(found, metric):
            yield OtherScore(metric, found[-1], best)


def _title(history: Sequence[RoundResult], metric: Metric) -> str:
    """Return the title of the tile with the main score."""
    if any(row.value(f"personal_{metric.name}") is not None for row in history):
        return f"{'Global' if any(row.has_both for row in history) else 'Personal'} {metric.title_inside}"
    return metric.title


@dataclass(frozen=True)
class RoundColumns:
    """Which columns the table of rounds has.

    Attributes:
        metric: the main score.
        own: the same of the clients' own models.
        parted: sub-models, who trained which, and the waste.
        labelled: bytes of soft labels.
    """

    metric: Metric
    own: bool
    parted: bool
    labelled: bool


def round_columns(history: Sequence[RoundResult], metric: Metric) -> RoundColumns:
    """Choose the columns: of scores from all rounds, because some are not evaluated, the others from the latest."""
    latest = history[-1:]
    return RoundColumns(
        metric=metric,
        own=any(row.has_both for row in history),
        parted=any(row.trained for row in latest),
        labelled=any(row.label_bytes_up is not None for row in latest),
    )


def list_notes(snapshot: Snapshot, results: ResultSummary) -> list[str]:
    """Return the snapshot's notes, and for how long no coordinator ran: a run in progress has no note of it."""
    away = describe_away(results.times.away)
    return [*snapshot.notes, away] if away and away not in snapshot.notes else snapshot.notes


REPLIES_SHOWN = 200


def latest_replies(rows: Sequence[ReplyRow]) -> list[dict[str, str]]:
    """Return the texts of the latest closed exchange's replies, as a table shows them: by agent and client."""
    closed = [row for row in rows if row.closed_at is not None] or rows
    latest = max((row.place for row in closed), default=None)
    newest = [row for row in closed if row.place == latest]
    newest.sort(key=lambda row: (natural_key(row.agent), row.client or 0))
    return [_reply_texts(row) for row in newest[:REPLIES_SHOWN]]


def _reply_texts(row: ReplyRow) -> dict[str, str]:
    client = DASH if row.client is None else str(row.client)
    spans = {name: duration(seconds) for name, seconds in split_reply(row).items()}
    return {"agent": row.agent, "client": client, **spans, "outcome": row.outcome}


Health = Literal["ok", "failed", "broker-lost"]


def health_status(snapshot: Snapshot) -> Health:
    """Return the status for the health check."""
    if snapshot.phase == "failed":
        return "failed"
    return "ok" if snapshot.broker_connected or snapshot.phase == "finished" else "broker-lost"
