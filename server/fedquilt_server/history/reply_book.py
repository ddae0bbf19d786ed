"""Derives the rows of ``replies.csv`` from the journal's events and the results of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedquilt_server.round.events import Event, Rejected, Replied, RoundRestarted, Ticked
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult

_KEPT: Final = (Replied, Rejected, RoundRestarted, Ticked)
RoundEvent = Replied | Rejected | RoundRestarted | Ticked


@dataclass
class ReplyBook:
    """Collects the events of the open round."""

    events: list[RoundEvent] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take the next event of the journal."""
        if isinstance(event, _KEPT):
            self.events.append(event)

    def open_rows(self) -> list[ReplyRow]:
        """Return the rows of the round so far."""
        return [row for _, row in _label_discarded(self.events)]

    def close(self, result: RoundResult, at: float) -> list[ReplyRow]:
        """Return the rows of the round and begin the next one.

        Args:
            result: the round's results.
            at: Unix time in seconds of its checkpoint.
        """
        events, self.events = self.events, []
        return round_rows(events, result, at)


def round_rows(events: Sequence[RoundEvent], result: RoundResult, at: float) -> list[ReplyRow]:
    """Return one row for each reply of a finished round, and one for each client that did not reply.

    Args:
        events: the round's events in the journal's order.
        result: the round's results.
        at: Unix time in seconds of its checkpoint.
    """
    rows = _label_discarded(events)
    spans = _exchange_spans(events, result, at)
    known = [_complete(event, row, result, spans) for event, row in rows]
    return [*known, *_missing_rows(result, spans)]


@dataclass(frozen=True)
class _Span:
    """Unix times at which an exchange opened and closed."""

    opened_at: float
    closed_at: float


def _label_discarded(events: Sequence[RoundEvent]) -> list[tuple[RoundEvent, ReplyRow]]:
    """Return a row for each reply. Of several accepted replies to one task only the last counts."""
    restarted = max((i for i, event in enumerate(events) if isinstance(event, RoundRestarted)), default=-1)
    last = {(e.client, e.exchange): i for i, e in enumerate(events) if isinstance(e, Replied)}
    rows: list[tuple[RoundEvent, ReplyRow]] = []
    for i, event in enumerate(events):
        if isinstance(event, Replied):
            counts = i > restarted and last[event.client, event.exchange] == i
            rows.append((event, _accepted_row(event, counts=counts)))
        elif isinstance(event, Rejected) and event.client is not None:
            rows.append((event, _refused_row(event)))
    return rows


def _accepted_row(event: Replied, *, counts: bool) -> ReplyRow:
    metrics = event.metrics
    return ReplyRow(
        round=event.round,
        exchange=event.exchange,
        client=event.client,
        agent=event.agent,
        samples=event.weight,
        loss=metrics.get("loss"),
        accuracy=metrics.get("accuracy"),
        train_seconds=metrics.get("train_seconds"),
        bytes=event.payload,
        memory_peak=_whole(metrics.get("memory_peak")),
        gpu_memory_peak=_whole(metrics.get("gpu_memory_peak")),
        joules=metrics.get("joules"),
        epsilon=metrics.get("epsilon"),
        outcome="accepted" if counts else "discarded",
        began_at=event.began,
        arrived_at=event.at,
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _refused_row(event: Rejected) -> ReplyRow:
    return ReplyRow(
        round=event.round, client=event.client, agent=event.agent, outcome=event.outcome, arrived_at=event.at
    )


def _exchange_spans(events: Iterable[RoundEvent], result: RoundResult, at: float) -> dict[int, _Span]:
    """Return when each exchange opened and closed.

    An exchange closes with its last reply, or with its deadline if clients are missing. The next one opens then.
    """
    closed: dict[int, float] = {}
    current = 0
    for event in events:
        if isinstance(event, Replied):
            current = event.exchange
            closed[current] = event.at
        elif isinstance(event, Ticked) and str(current) in result.missing:
            closed[current] = event.at
    spans, opened = dict[int, _Span](), at - result.seconds
    for number in sorted(closed):
        spans[number] = _Span(opened, max(opened, closed[number]))
        opened = spans[number].closed_at
    return spans


def _complete(event: RoundEvent, row: ReplyRow, result: RoundResult, spans: dict[int, _Span]) -> ReplyRow:
    """Add what is known when the round is over."""
    level = result.trained.get(str(row.client))
    changes: dict[str, object] = {"level": None if level is None else str(level)}
    if row.outcome == "accepted" and row.client in result.discarded.get(str(row.exchange), ()):
        changes["outcome"] = "discarded"
    if isinstance(event, Replied) and event.exchange in spans:
        span = spans[event.exchange]
        changes |= {"opened_at": span.opened_at, "closed_at": span.closed_at}
    return row.model_copy(update=changes)


def _missing_rows(result: RoundResult, spans: dict[int, _Span]) -> list[ReplyRow]:
    return [
        ReplyRow(
            round=result.round, exchange=int(number), client=client, agent=agent, outcome="missing",
            opened_at=spans[int(number)].opened_at if int(number) in spans else None,
            closed_at=spans[int(number)].closed_at if int(number) in spans else None,
        )
        for number, clients in result.missing.items()
        for client, agent in clients.items()
    ]  # fmt: skip
