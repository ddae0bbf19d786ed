"""Derives the rows of ``replies.csv`` from the journal's events and the results of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fedquilt_common.algorithm_api.records import FITS, UNTESTED
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_server.round.events import Event, Rejected, Replied, RoundRestarted, Ticked
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult

_KEPT: Final = (Replied, Rejected, RoundRestarted, Ticked)
RoundEvent = Replied | Rejected | RoundRestarted | Ticked


@dataclass
class ReplyBook:
    """Collects the events of the open round, and a row for each reply.

    Of several accepted replies to one task only the last counts, and none from before a restart of the round.
    """

    events: list[RoundEvent] = field(default_factory=list)
    rows: list[tuple[RoundEvent, ReplyRow]] = field(default_factory=list)
    _counting: dict[tuple[ClientId, ExchangeId], int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Take the next event of the journal."""
        if not isinstance(event, _KEPT):
            return
        self.events.append(event)
        if isinstance(event, RoundRestarted):
            for position in self._counting.values():
                self._discard(position)
            self._counting.clear()
        elif isinstance(event, Replied):
            task = event.client, (event.round, event.exchange)
            if task in self._counting:
                self._discard(self._counting[task])
            self._counting[task] = len(self.rows)
            self.rows.append((event, _accepted_row(event)))
        elif isinstance(event, Rejected) and event.client is not None:
            self.rows.append((event, _refused_row(event)))

    def _discard(self, position: int) -> None:
        event, row = self.rows[position]
        self.rows[position] = event, row.model_copy(update={"outcome": "discarded"})

    def open_rows(self) -> list[ReplyRow]:
        """Return the rows of the round so far."""
        return [row for _, row in self.rows]

    def close(self, result: RoundResult, at: float) -> list[ReplyRow]:
        """Return one row for each reply of the round and one for each client that did not reply; begin the next round.

        Args:
            result: the round's results.
            at: Unix time in seconds of its checkpoint.
        """
        spans = _exchange_spans(self.events, result, at)
        known = [_complete(event, row, result, spans) for event, row in self.rows]
        self.events, self.rows, self._counting = [], [], {}
        return [*known, *_missing_rows(result, spans)]


@dataclass(frozen=True)
class _Span:
    """Unix times at which an exchange opened and closed."""

    opened_at: float
    closed_at: float


def _accepted_row(event: Replied) -> ReplyRow:
    metrics = event.metrics
    return ReplyRow(
        round=event.round,
        exchange=event.exchange,
        client=event.client,
        agent=event.agent,
        samples=None if FITS in metrics else event.weight,
        loss=metrics.get("loss"),
        accuracy=None if UNTESTED in metrics else metrics.get("accuracy"),
        train_seconds=metrics.get("train_seconds"),
        bytes=event.payload,
        memory_peak=_whole(metrics.get("memory_peak")),
        gpu_memory_peak=_whole(metrics.get("gpu_memory_peak")),
        joules=metrics.get("joules"),
        epsilon=metrics.get("epsilon"),
        outcome="accepted",
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

    An exchange closes with its last reply, or with its deadline if clients are missing or go on. If clients are missing
    that have failed, it may also close with the last failure. The next one opens then.
    """
    closed: dict[int, float] = {}
    current = 0
    waiting = {int(number): dict(clients) for number, clients in result.missing.items()}
    for event in events:
        if isinstance(event, Replied):
            current = event.exchange if event.round == result.round else current
            closed[current] = event.at
        elif isinstance(event, Rejected) and _fails(event, waiting.get(current, {}), result.round):
            waiting[current] = {client: agent for client, agent in waiting[current].items() if client != event.client}
            closed[current] = event.at
        elif isinstance(event, Ticked) and (str(current) in result.missing or result.staleness is not None):
            waiting.pop(current, None)
            closed[current] = event.at
    spans, opened = dict[int, _Span](), at - result.seconds
    for number in sorted(closed):
        spans[number] = _Span(opened, max(opened, closed[number]))
        opened = spans[number].closed_at
    return spans


def _fails(event: Rejected, waiting: Mapping[ClientId, str], round: int) -> bool:
    """Whether a client fails, by its own agent's word, whose reply an exchange of the round still waits for."""
    return (
        event.failed and event.round == round and event.client is not None and waiting.get(event.client) == event.agent
    )


def _complete(event: RoundEvent, row: ReplyRow, result: RoundResult, spans: dict[int, _Span]) -> ReplyRow:
    """Add what is known when the round is over."""
    level = result.trained.get(str(row.client))
    changes: dict[str, object] = {"level": None if level is None else str(level)}
    cost = result.sub_models.get(str(level)) if level is not None else None
    if row.train_seconds is not None and cost:
        changes |= {"params": cost.params, "flops": cost.flops}
    number = _find_exchange(event, result, spans) if isinstance(event, Replied) else None
    if row.outcome == "accepted" and row.client in result.discarded.get(str(number), ()):
        changes["outcome"] = "discarded"
    elif row.outcome == "accepted" and number is not None:
        changes |= {"counted_round": result.round, "counted_exchange": number}
    if number is not None:
        changes |= {"opened_at": spans[number].opened_at, "closed_at": spans[number].closed_at}
    return row.model_copy(update=changes)


def _find_exchange(event: Replied, result: RoundResult, spans: dict[int, _Span]) -> int | None:
    """Return the exchange in which a reply came: its own, or for a task of an earlier round the one that was open."""
    if event.round == result.round:
        return event.exchange if event.exchange in spans else None
    return next((number for number, span in spans.items() if event.at <= span.closed_at), None)


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
