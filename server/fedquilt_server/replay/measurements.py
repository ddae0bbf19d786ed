"""The times of a recorded run: how long clients train, and how long everything around the training takes.

The arrival of a reply is split into parts. A board with W training processes does its first W tasks at once:

    arrival = opening of the exchange + lag + training

``lag`` holds everything else: publishing, download, loading, writing and upload, but not the time of the bytes on an
imitated link. Each later task of a board follows another one on the same process:

    arrival = arrival of the reply before + gap + training

The rest of a round, from the reply that closes it to the next opening, is the coordinator's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.experiment.experiment import agent_specs
from fedquilt_common.types import ClientId
from fedquilt_common.wire.link import Link
from fedquilt_server.replay.recording import RecordedRound, Recording
from fedquilt_server.round.events import CutOff, Joined, Replied, Resumed, RoundRestarted, Ticked
from fedquilt_server.status.results import RoundResult

WARM_UP: Final = 1
"""Number of the round in which training processes start; it is left out if there are others."""
_ROUNDING: Final = 1e-3
"""Seconds within which two times are the same moment."""


@dataclass(frozen=True)
class RecordedTask:
    """One task that a client did: its training in seconds, and the bytes of its reply."""

    train: float
    size: int


@dataclass(frozen=True)
class RecordedBoard:
    """A board of the recorded run.

    Attributes:
        agent: name of its agent.
        kind: its kind, as the experiment's fleet names it.
        workers: training processes.
        clients: the clients that replied from it.
        link: the link that it imitated; None: none.
    """

    agent: str
    kind: str
    workers: int
    clients: tuple[ClientId, ...]
    link: Link | None = None


@dataclass(frozen=True)
class CoordinatorTimes:
    """The coordinator's part of one round.

    Attributes:
        seconds: duration of the whole round.
        averaging: the part of ``rest`` that grows with the number of replies.
        rest: seconds from the reply that closed the round to the end of the round.
        replies: replies that counted.
        bytes_down: bytes at the coordinator's socket; ``model`` of them do not depend on the number of boards.
        bytes_up: bytes at the coordinator's socket.
        model: bytes of the model on the wire.
    """

    seconds: float
    averaging: float
    rest: float
    replies: int
    bytes_down: int
    bytes_up: int
    model: int


@dataclass(frozen=True)
class Measurements:
    """Everything that a prediction draws from; the keys of the inner mappings are rounds.

    Attributes:
        boards: the boards that replied.
        rounds: the coordinator's times of each round.
        exchanges: the clients that replied in each exchange, by round and exchange.
        tasks: for each exchange and client.
        lags: for each exchange and agent.
        gaps: for each exchange and agent; empty for a board that did no task after another one.
        trained: the width or level that each client trained; without those that trained the whole model.
    """

    boards: Sequence[RecordedBoard]
    rounds: Mapping[int, CoordinatorTimes]
    exchanges: Mapping[int, Mapping[int, frozenset[ClientId]]]
    tasks: Mapping[tuple[int, ClientId], Mapping[int, RecordedTask]]
    lags: Mapping[tuple[int, str], Mapping[int, Sequence[float]]]
    gaps: Mapping[tuple[int, str], Mapping[int, Sequence[float]]]
    trained: Mapping[ClientId, float | str]

    @property
    def typical_gap(self) -> float:
        """The median gap of all boards; 0 if no board did one task after another."""
        found = [gap for rounds in self.gaps.values() for gaps in rounds.values() for gap in gaps]
        return median(found) if found else 0.0

    @property
    def seconds(self) -> float:
        """The median duration of the recorded rounds."""
        return median(times.seconds for times in self.rounds.values())


def measure(recording: Recording) -> Measurements:
    """Measure a recorded run.

    Raises:
        RunFolderError: the run has no finished round that can be measured, or its tasks go on over rounds.
    """
    if any(row.staleness is not None for row in map(_result, recording.rounds) if row is not None):
        raise RunFolderError(
            f"{recording.folder}: its rounds end with the first replies, and the others count in later rounds; a "
            "prediction is for rounds that wait for the replies to their own tasks, so name the folder of another run"
        )
    participation = recording.experiment.participation
    timed = [(part, _timed_exchanges(part, participation.quorum)) for part in recording.rounds if _result(part)]
    replaces = participation.shortfall == "replace"
    rounds = [(part, found) for part, found in timed if not _is_repeated(part, found, replaces=replaces)]
    rounds = [pair for pair in rounds if pair[0].round > WARM_UP] or rounds
    if not rounds:
        raise RunFolderError(f"{recording.folder} has no finished round without a restart, so nothing can be predicted")
    boards = _boards(recording)
    collected = _Collector({board.agent: board for board in boards})
    for part, found in rounds:
        collected.add(part, found)
    return Measurements(
        boards, collected.rounds, collected.exchanges, collected.tasks, collected.lags, collected.gaps,
        collected.trained,
    )  # fmt: skip


def _result(part: RecordedRound) -> RoundResult | None:
    return part.checkpoint.result if part.checkpoint is not None else None


def _is_repeated(part: RecordedRound, exchanges: Sequence[TimedExchange], *, replaces: bool) -> bool:
    """Whether coordinator or round were restarted, so that the round's times include more than one attempt.

    Args:
        replaces: whether a round starts again when a deadline passes without the quorum.
    """
    restarted = any(isinstance(event, Resumed | CutOff | RoundRestarted) for _, event in part.events)
    return restarted or (replaces and any(exchange.is_short for exchange in exchanges))


@dataclass(frozen=True)
class TimedExchange:
    """One exchange of a recorded round, in Unix time in seconds.

    Attributes:
        opened_at: when it opened.
        closed_at: when it closed: with its last reply that counts, or at its deadline.
        replies: each client's first reply, even if it came too late to count.
        is_short: whether its deadline passed without the quorum.
    """

    number: int
    opened_at: float
    closed_at: float
    replies: Mapping[ClientId, Replied]
    is_short: bool


def _timed_exchanges(part: RecordedRound, quorum: int) -> list[TimedExchange]:
    """Return the exchanges of a finished round that have replies, in their order."""
    result, closing = _result(part), part.checkpoint
    assert result is not None  # noqa: S101 - the caller has chosen such rounds
    assert closing is not None  # noqa: S101
    opened_at = closing.at - result.seconds
    first = _first_replies(part)
    found: list[TimedExchange] = []
    for number in sorted({exchange for _, exchange in first}):
        replies = {client: reply for (client, exchange), reply in first.items() if exchange == number}
        closed_at, is_short = _find_closing(part, number, opened_at, quorum)
        found.append(TimedExchange(number, opened_at, closed_at, replies, is_short))
        opened_at = closed_at
    return found


def _find_closing(part: RecordedRound, number: int, opened_at: float, quorum: int) -> tuple[float, bool]:
    """Return when an exchange closed, and whether its deadline had passed without the quorum.

    With the quorum, it closes at its deadline; without, with the reply that completes the quorum. If fewer clients than
    the quorum were asked, it closes with the last event before the next exchange.
    """
    closed_at, overdue, is_short = opened_at, False, False
    clients: set[ClientId] = set()
    for _, event in part.events:
        match event:
            case Replied() if (event.round, event.exchange) == (part.round, number):
                clients.add(event.client)
            case Replied() if event.round == part.round and event.exchange > number:
                break
            case Ticked() if event.at > opened_at + _ROUNDING:
                overdue, is_short = True, is_short or len(clients) < quorum
            case _:
                continue
        closed_at = event.at
        if overdue and len(clients) >= quorum:
            break
    return closed_at, is_short


def _boards(recording: Recording) -> list[RecordedBoard]:
    specs = agent_specs(recording.experiment.fleet, recording.experiment.speedup)
    links = {spec.name: spec.link for spec in specs}
    joined = {e.agent: e for part in recording.rounds for _, e in part.events if isinstance(e, Joined)}
    clients: dict[str, set[ClientId]] = defaultdict(set)
    for reply in recording.replies:
        clients[reply.agent].add(reply.client)
    return [
        RecordedBoard(agent, joined[agent].profile.kind, joined[agent].workers, tuple(sorted(own)), links.get(agent))
        for agent, own in sorted(clients.items())
        if agent in joined
    ]


class _Collector:
    """Collects the times of the rounds."""

    def __init__(self, boards: Mapping[str, RecordedBoard]) -> None:
        self._boards = boards
        self.rounds: dict[int, CoordinatorTimes] = {}
        self.tasks: dict[tuple[int, ClientId], dict[int, RecordedTask]] = defaultdict(dict)
        self.lags: dict[tuple[int, str], dict[int, Sequence[float]]] = defaultdict(dict)
        self.gaps: dict[tuple[int, str], dict[int, Sequence[float]]] = defaultdict(dict)
        self.trained: dict[ClientId, float | str] = {}
        self.exchanges: dict[int, Mapping[int, frozenset[ClientId]]] = {}

    def add(self, part: RecordedRound, exchanges: Sequence[TimedExchange]) -> None:
        result, closing = _result(part), part.checkpoint
        assert result is not None  # noqa: S101 - the caller has chosen such rounds
        assert closing is not None  # noqa: S101
        self.trained |= {int(client): size for client, size in result.trained.items() if size != 1.0}
        for exchange in exchanges:
            self._add_exchange(part.round, exchange)
        self.exchanges[part.round] = {exchange.number: frozenset(exchange.replies) for exchange in exchanges}
        ends = [exchange.closed_at for exchange in exchanges[-1:]]
        rest = max(0.0, closing.at - max([closing.at - result.seconds, *ends, *(e.at for _, e in part.events[-1:])]))
        averaging = min(rest, result.averaging_seconds)
        replies = sum(reply.at <= exchange.closed_at for exchange in exchanges for reply in exchange.replies.values())
        self.rounds[part.round] = CoordinatorTimes(
            result.seconds, averaging, rest, replies, result.bytes_down, result.bytes_up, result.model_bytes
        )  # fmt: skip

    def _add_exchange(self, round: int, timed: TimedExchange) -> None:
        exchange, opened_at, replies = timed.number, timed.opened_at, timed.replies.values()
        for reply in replies:
            seconds = min(max(0.0, reply.metrics.get("train_seconds", 0.0)), reply.at - opened_at)
            self.tasks[exchange, reply.client][round] = RecordedTask(seconds, reply.payload)
        for agent in {reply.agent for reply in replies}:
            own = sorted((reply for reply in replies if reply.agent == agent), key=lambda reply: reply.at)
            board = self._boards.get(agent)
            workers, link = (board.workers, board.link) if board else (1, None)
            trains = [self.tasks[exchange, reply.client][round].train for reply in own]
            lags, gaps = split_arrivals([reply.at - opened_at for reply in own], trains, workers)
            sent = [2 * mean_transfer_seconds(link, reply.payload) for reply in own]
            self.lags[exchange, agent][round] = tuple(lag - seconds for lag, seconds in zip(lags, sent, strict=False))
            if gaps:
                self.gaps[exchange, agent][round] = gaps


def _first_replies(part: RecordedRound) -> dict[tuple[ClientId, int], Replied]:
    """Return the first reply of each client in each exchange, by client and exchange."""
    found: dict[tuple[ClientId, int], Replied] = {}
    for _, event in part.events:
        if isinstance(event, Replied) and event.round == part.round:
            found.setdefault((event.client, event.exchange), event)
    return found


def mean_transfer_seconds(link: Link | None, size: int) -> float:
    """Return the mean seconds until ``size`` bytes have crossed a link, without pauses before repairs.

    0 without a link. The journal does not have the time that a recorded transfer took, so the mean stands for it.
    """
    return 0.0 if link is None else link.mean_seconds(size) + link.mean_latency


def split_arrivals(
    arrivals: Sequence[float], trains: Sequence[float], workers: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lags of the first tasks and the gaps before the later ones, in seconds.

    Args:
        arrivals: seconds from the opening of the exchange to each reply of one board, in order.
        trains: the training of each, in seconds.
        workers: training processes of the board.
    """
    pairs = list(zip(arrivals, trains, strict=True))
    lags = tuple(arrival - train for arrival, train in pairs[:workers])
    gaps = tuple(
        arrival - arrivals[number] - train for number, (arrival, train) in enumerate(pairs[workers:])
    )  # fmt: skip
    return lags, gaps
