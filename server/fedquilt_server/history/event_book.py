"""Derives the events for people, and the counts of each board, from the journal's events. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Final

from fedquilt_common.algorithm_api.records import FITS, NOTHING_FITS
from fedquilt_common.flood_control.admission import UNKNOWN
from fedquilt_common.plurals import plural
from fedquilt_server.round.events import (
    Continued,
    CutOff,
    Event,
    Joined,
    Left,
    Paused,
    Rejected,
    Replied,
    Resumed,
    RoundRestarted,
)
from fedquilt_server.round.exchange import Exchange
from fedquilt_server.status.health import TOO_SMALL, BoardFacts
from fedquilt_server.status.run_event import LEVELS, EventKind, RunEvent
from fedquilt_server.status.waiting import ranges

_PAUSED: Final[tuple[EventKind, str]] = "paused", "Paused: no further round opens"
_STOPPING: Final[tuple[EventKind, str]] = "stopping", "Somebody ends the run: no further round opens"


@dataclass
class BoardCounts:
    """The replies and restarts of one board since the run began.

    Attributes:
        accepted: accepted replies, those included that did not count because the round started again.
        restarts: how often its agent started again.
        restarted_at: Unix time in seconds of the last restart; None before the first.
        is_dropped: whether a person has dropped it from the run.
        is_late: whether its last reply was late.
        is_too_small: whether no sub-model fitted it when it was last asked to train one.
        out_of_memory_at: Unix time in seconds at which it last reported that training ran out of memory.
    """

    accepted: int = 0
    late: int = 0
    rejected: int = 0
    restarts: int = 0
    restarted_at: float | None = None
    is_dropped: bool = False
    is_late: bool = False
    is_too_small: bool = False
    out_of_memory_at: float | None = None

    def facts(self, silence: float, *, is_sending: bool) -> BoardFacts:
        """Return what the board's health is judged by, with the seconds without a message."""
        return BoardFacts(silence=silence, is_sending=is_sending, **asdict(self))


@dataclass
class EventBook:
    """Follows the journal.

    Attributes:
        round: the open round, or the next one.
        boards: the counts of each board that has joined or replied.
    """

    round: int = 1
    boards: dict[str, BoardCounts] = field(default_factory=dict)
    _boots: dict[str, int] = field(default_factory=dict)
    _present: set[str] = field(default_factory=set)
    _idle: set[str] = field(default_factory=set)
    _too_small: set[str] = field(default_factory=set)

    def counts_of(self, board: str) -> BoardCounts:
        """Return the counts of a board, which later events change."""
        return self.boards.setdefault(board, BoardCounts())

    def take(self, seq: int, event: Event) -> RunEvent | None:
        """Take the journal's next event; returns its event for people, if it has one."""
        match event:
            case Joined():
                kind, text = self._join(event)
                return self.make(kind, event.at, text, seq=seq, board=event.agent)
            case Left() if event.agent in self._present:
                self._present.discard(event.agent)
                clients = "" if event.agent in self._idle else "; its clients are free for other agents"
                return self.make("left", event.at, f"no longer takes part{clients}", seq=seq, board=event.agent)
            case Replied():
                return self._accept(seq, event)
            case Rejected():
                return self._refuse(seq, event)
            case Resumed():
                return self.make("recovered", event.at, "The coordinator restarted and resumed the run", seq=seq)
            case CutOff(seconds=seconds):
                text = f"No message could arrive for {seconds:.0f} s; the deadline is later by that time"
                return self.make("cut off", event.at, text, seq=seq)
            case Paused(stops=stops):
                kind, text = _STOPPING if stops else _PAUSED
                return self.make(kind, event.at, text, seq=seq)
            case Continued():
                return self.make("continued", event.at, "The run goes on", seq=seq)
            case RoundRestarted():
                text = f"Round {event.round} started again: {event.reason}"
                return self.make("round restarted", event.at, text, seq=seq)
        return None

    def make(
        self,
        kind: EventKind,
        at: float,
        text: str,
        *,
        seq: int | None = None,
        board: str | None = None,
        client: int | None = None,
        exchange: int | None = None,
    ) -> RunEvent:
        """Return an event of the open round."""
        board = None if board == UNKNOWN else board
        return RunEvent(
            seq=seq, at=at, kind=kind, level=LEVELS[kind], board=board, client=client, round=self.round,
            exchange=exchange, text=text,
        )  # fmt: skip

    def _join(self, event: Joined) -> tuple[EventKind, str]:
        before, was_present = self._boots.get(event.agent), event.agent in self._present
        self._boots[event.agent] = event.boot
        self._present.add(event.agent)
        (self._idle.discard if event.clients else self._idle.add)(event.agent)
        hosted = f"hosts {plural('client', len(event.clients))} {ranges(event.clients)}" if event.clients else "idle"
        if before is None or (was_present and event.boot == before):
            self.counts_of(event.agent)
            return "joined", f"connected; {hosted}"
        if event.boot == before:
            return "back", f"connected again; {hosted}"
        counts = self.counts_of(event.agent)
        counts.restarts, counts.restarted_at, counts.is_too_small = counts.restarts + 1, event.at, False
        times = "once" if counts.restarts == 1 else f"{counts.restarts} times"
        return "restarted", f"restarted ({times} in this run); {hosted}"

    def _accept(self, seq: int, event: Replied) -> RunEvent | None:
        counts = self.counts_of(event.agent)
        counts.accepted, counts.is_late = counts.accepted + 1, False
        if FITS in event.metrics or "train_seconds" in event.metrics:
            counts.is_too_small = event.metrics.get(FITS) == NOTHING_FITS
        if event.metrics.get(FITS) != NOTHING_FITS or event.agent in self._too_small:
            return None
        self._too_small.add(event.agent)
        return self.make("too small", event.at, TOO_SMALL, seq=seq, board=event.agent, client=event.client)

    def _refuse(self, seq: int, event: Rejected) -> RunEvent | None:
        counts = self.counts_of(event.agent)
        counts.is_late = event.outcome == "late"
        if event.outcome == "late":
            counts.late += 1
            text = f"its reply to round {event.round} was late and does not count"
            return self.make("late", event.at, text, seq=seq, board=event.agent, client=event.client)
        if event.outcome == "rejected":
            counts.rejected += 1
            kind: EventKind = "declined" if event.declined else "rejected"
            text = event.reason.removeprefix("the client ") if event.declined else event.reason
            return self.make(kind, event.at, text, seq=seq, board=event.agent, client=event.client)
        return None


def describe_skip(exchange: Exchange) -> str:
    """Describe in a sentence an exchange that closed before its deadline without the clients that had failed."""
    failed = sorted(exchange.failed)
    clients = f"{plural('client', len(failed))} {ranges(failed)}"
    return f"Failed: {clients}. The round continues with {len(exchange.replies)} of {len(exchange.clients)} replies"


def describe_deadline(exchange: Exchange, *, waits: bool = False) -> str:
    """Describe a deadline that has passed, in a sentence.

    Args:
        waits: the exchange stays open, because fewer clients than the quorum have replied.
    """
    missing = f"{plural('client', len(exchange.missing))} {ranges(exchange.missing)}"
    went_on = f"too few for the quorum, so the round waits for {missing}" if waits else f"without {missing}"
    return f"The deadline passed with {len(exchange.replies)} of {len(exchange.clients)} replies; {went_on}"
