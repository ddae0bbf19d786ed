"""Predicts rounds with other settings: draws recorded times at random, and simulates the events of each round.

The times of one simulated round come from one recorded round where it has them, because boards and coordinator are
slow or fast together; other rounds fill the gaps. The same seed gives the same prediction.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from fedquilt_common.types import ClientId
from fedquilt_common.wire.link import Link
from fedquilt_server.replay.drawn_link import DrawnLink, MeanLink
from fedquilt_server.replay.measurements import CoordinatorTimes, Measurements, RecordedBoard, RecordedTask
from fedquilt_server.replay.round_model import (
    ClosedExchange,
    ClosingRule,
    ModelledTask,
    board_arrivals,
    close_exchange,
    misses_quorum,
)
from fedquilt_server.replay.what_if import ALL_KINDS, WhatIf

T = TypeVar("T")
_MOST_RESTARTS: Final = 10
_LINK_SECONDS: Final = 1e9
"""Seconds on the links within which a simulated round opens: many times the longest period of open times."""


@dataclass(frozen=True)
class SimulatedBoard:
    """A board of the simulation: a copy of a recorded one, with clients that behave as recorded clients do."""

    model: RecordedBoard
    clients: tuple[ClientId, ...]
    workers: int
    link: Link | None


@dataclass(frozen=True)
class SimulatedRound:
    """One simulated round.

    Attributes:
        seconds: its duration.
        replies: replies that count, in the first exchange.
        bytes_down: bytes that the coordinator sends.
        bytes_up: bytes that the coordinator receives.
    """

    seconds: float
    replies: int
    bytes_down: float
    bytes_up: float


def simulate_rounds(
    measurements: Measurements,
    settings: WhatIf,
    speedup: float,
    samples: int,
    seed: int,
    asked: Collection[ClientId] | None = None,
) -> list[SimulatedRound]:
    """Simulate rounds with other settings.

    Args:
        measurements: the recorded times.
        settings: the settings of the rounds.
        speedup: the experiment's `speedup`; links and deadlines are divided by it.
        samples: number of rounds.
        seed: of all draws; those of the links do not change the others.
        asked: the clients of every round; None draws them.
    """
    simulation = _Simulation(measurements, settings, speedup, seed)
    return [simulation.round(asked) for _ in range(samples)]


def make_boards(recorded: Sequence[RecordedBoard], settings: WhatIf) -> list[SimulatedBoard]:
    """Return the boards of a simulation: the recorded ones in turn."""
    return [
        SimulatedBoard(
            board,
            tuple(itertools.islice(itertools.cycle(board.clients), settings.clients_per_board or len(board.clients))),
            settings.workers or board.workers,
            settings.links.get(board.kind, settings.links.get(ALL_KINDS, board.link)),
        )
        for board in itertools.islice(itertools.cycle(recorded), settings.boards)
    ]


def predict_traffic(times: CoordinatorTimes, replies: int, boards: float) -> tuple[float, float]:
    """Return the bytes that the coordinator sends and receives in a round.

    The model is published once. All other bytes grow with the boards or with the replies.

    Args:
        times: a recorded round.
        replies: replies that count.
        boards: number of boards, as a multiple of the recorded ones.
    """
    fixed = min(times.model, times.bytes_down)
    down = fixed + (times.bytes_down - fixed) * boards
    return down, times.bytes_up * replies / max(1, times.replies)


@dataclass(frozen=True)
class Opening:
    """The opening of a simulated exchange.

    Attributes:
        exchange: its number.
        number: the recorded round from which its times are drawn.
        at: seconds at the desk by the clock that the open times of all links follow.
    """

    exchange: int
    number: int
    at: float


class _Simulation:
    def __init__(self, measurements: Measurements, settings: WhatIf, speedup: float, seed: int) -> None:
        self._m, self._settings, self._speedup = measurements, settings, speedup
        self._rng = np.random.default_rng(seed)
        self._link_rng = random.Random(seed)  # noqa: S311 - a simulation
        self._boards = make_boards(measurements.boards, settings)
        self._rule = ClosingRule(settings.quorum, settings.deadline / speedup)
        self._places = [
            (number, slot) for number, board in enumerate(self._boards) for slot in range(len(board.clients))
        ]
        self._all = range(len(self._places))
        self._factor = len(self._boards) / len(measurements.boards)
        self._numbers = sorted(measurements.rounds)

    def round(self, clients: Collection[ClientId] | None) -> SimulatedRound:
        number = int(self._rng.choice(self._numbers))
        times = self._m.rounds[number]
        asked = self._select(self._all, self._settings.per_round) if clients is None else self._find(clients)
        opened_at = self._link_rng.random() * _LINK_SECONDS / self._speedup
        seconds, replies, counted = 0.0, 0, 0
        for exchange, places_of_it in self._asked(number, asked).items():
            closed = self._exchange(Opening(exchange, number, opened_at + seconds), places_of_it)
            seconds, counted = seconds + closed.seconds, counted + closed.replies
            replies = replies or closed.replies
        averaging = times.averaging * counted / max(1, times.replies)
        down, up = predict_traffic(times, counted, self._factor)
        return SimulatedRound(seconds + times.rest - times.averaging + averaging, replies, down, up)

    def _asked(self, number: int, drawn: Sequence[int]) -> dict[int, Sequence[int]]:
        """Return the places that each exchange of a recorded round asks: the drawn ones, or all for an evaluation."""
        replied = self._m.exchanges[number]
        first = replied.get(0, frozenset())
        return {exchange: drawn if clients <= first else self._all for exchange, clients in replied.items()}

    def _find(self, clients: Collection[ClientId]) -> list[int]:
        """Return the places at which the boards host these clients."""
        return [
            place for place, (board, slot) in enumerate(self._places) if self._boards[board].clients[slot] in clients
        ]

    def _select(self, places: Sequence[int], count: int) -> list[int]:
        """Draw places of clients uniformly, as ``ctx.select`` does."""
        if len(places) <= count:
            return list(places)
        return sorted(int(place) for place in self._rng.choice(places, count, replace=False))

    def _exchange(self, opening: Opening, asked: Sequence[int]) -> ClosedExchange:
        """Simulate one exchange, with the restarts of ``shortfall: replace``."""
        begun, arrivals = 0.0, self._arrivals(opening, asked)
        for _ in range(_MOST_RESTARTS):
            if self._settings.shortfall == "wait" or not misses_quorum(list(arrivals.values()), self._rule):
                break
            others = [place for place in self._all if arrivals.get(place, 0.0) <= self._rule.deadline]
            if len(others) < self._rule.quorum:
                break
            begun += self._rule.deadline
            arrivals = self._restart(replace(opening, at=opening.at + begun), arrivals, others)
        closed = close_exchange(list(arrivals.values()), self._rule)
        return ClosedExchange(begun + closed.seconds, closed.replies)

    def _restart(self, opening: Opening, arrivals: Mapping[int, float], others: Sequence[int]) -> dict[int, float]:
        """Ask other clients; replies that have arrived are kept if their clients are drawn again."""
        asked = self._select(others, self._settings.per_round)
        fresh = self._arrivals(opening, [place for place in asked if place not in arrivals])
        return fresh | {place: 0.0 for place in asked if place in arrivals}

    def _arrivals(self, opening: Opening, asked: Sequence[int]) -> dict[int, float]:
        """Return the arrival of each asked client's reply, by its place; without clients that never had such a task."""
        found: dict[int, float] = {}
        for board, places in itertools.groupby(asked, key=lambda place: self._places[place][0]):
            own = list(places)
            found |= self._board_arrivals(opening, self._boards[board], own)
        return found

    def _board_arrivals(self, opening: Opening, board: SimulatedBoard, places: Sequence[int]) -> dict[int, float]:
        exchange, number = opening.exchange, opening.number
        clients = {place: board.clients[self._places[place][1]] for place in places}
        drawn = {place: self._draw_task(exchange, number, client) for place, client in clients.items()}
        present = {place: task for place, task in drawn.items() if task is not None}
        lags = self._draw(self._m.lags.get((exchange, board.model.agent), {}), number, (0.0,))
        gaps = self._draw(self._m.gaps.get((exchange, board.model.agent), {}), number, (self._m.typical_gap,))
        tasks = [
            ModelledTask(task.train, _pause(board, order, lags, gaps), task.size)
            for order, task in enumerate(present.values())
        ]
        return dict(zip(present, board_arrivals(tasks, board.workers, self._line(board, opening.at)), strict=True))

    def _line(self, board: SimulatedBoard, opened_at: float) -> MeanLink | None:
        """Return a board's link in an exchange; the recorded times hold the losses of the recorded link."""
        if board.link is None:
            return None
        if board.link == board.model.link:
            return MeanLink(board.link)
        return DrawnLink(board.link, self._link_rng, opened_at)

    def _draw_task(self, exchange: int, number: int, client: ClientId) -> RecordedTask | None:
        return self._draw(self._m.tasks.get((exchange, client), {}), number, None)

    def _draw(self, by_round: Mapping[int, T], number: int, default: T) -> T:
        """Return the value of the recorded round, or of another one if it has none."""
        if number in by_round:
            return by_round[number]
        rounds = sorted(by_round)
        return by_round[rounds[int(self._rng.integers(len(rounds)))]] if rounds else default


def _pause(board: SimulatedBoard, order: int, lags: Sequence[float], gaps: Sequence[float]) -> float:
    """Return the lag or gap before a board's task; ``order`` counts its tasks from 0."""
    if order >= board.workers:
        return gaps[(order - board.workers) % len(gaps)]
    # a process that the recorded board did not have begins as its first one did
    return lags[order % len(lags)] if order < board.model.workers else lags[0]


@dataclass(frozen=True)
class Spread:
    """Median, and the 5th and 95th percentile."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the percentiles of some values; all are nan without values."""
    if not values:
        return Spread(math.nan, math.nan, math.nan)
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [5, 50, 95])
    return Spread(float(middle), float(low), float(high))
