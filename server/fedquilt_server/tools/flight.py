"""A drone's flight along a route: when each node is in reach, how long it takes, and what a board consumes meanwhile.

FedAKD thesis, section 4.4: the drone reaches a node within a radius (equation 4.4). It stops at each node twice: on the
way out to collect labels, on the way back to deliver the consensus. Then it waits at its start while the boards train.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.link import SHORTEST_OPEN
from fedquilt_server.tools.route import Point, Route

Interval = tuple[float, float]
"""Start and end in seconds from the start of the flight."""


@dataclass(frozen=True)
class Watts:
    """Power of a board: idle, further for its radio in an exchange, and in all while it trains."""

    idle: float
    radio: float
    training: float


def read_watts(text: str) -> Watts:
    """Read the powers of ``--watts``, such as ``1.4,0.4,3.7``.

    Raises:
        ExperimentError: they are not three numbers from 0 to 1,000,000.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != len(dataclasses.fields(Watts)) or not all(0 <= value <= 1e6 for value in values):
        raise ExperimentError(
            f"--watts {text}: give three numbers from 0 to 1000000, such as 1.4,0.4,3.7: the power of an idle board, "
            "what its radio adds, and its power in training"
        )
    return Watts(*values)


@dataclass(frozen=True)
class Flight:
    """A flight out and back, and the wait until the next one.

    Args:
        route: the way.
        speed: metres per second.
        exchange: seconds of an exchange with a node, in one direction.
        radius: metres within which the drone reaches a node.
        training: seconds that the boards train between two flights.

    Raises:
        ExperimentError: a number is out of range; it names the option of ``fedquilt bench route``.
    """

    route: Route
    speed: float
    exchange: float
    radius: float = 50.0
    training: float = 0.0

    def __post_init__(self) -> None:
        bounds = {"speed": (0.001, 1000.0), "radius": (0.0, 1e7), "training": (0.0, 1e7)}
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ExperimentError(f"--{name} {value:g}: must be from {least:g} to {most:g}")

    @property
    def flight_seconds(self) -> float:
        """Seconds in motion."""
        return self.route.distance / self.speed

    @property
    def exchange_seconds(self) -> float:
        """Seconds of hovering: two exchanges with each node, at the last one in a single stop."""
        return 2 * len(self.route.nodes) * self.exchange

    @property
    def seconds(self) -> float:
        """Seconds from one start to the next."""
        return self.flight_seconds + self.exchange_seconds + self.training

    def joules(self, watts: Watts) -> float:
        """Return the energy of one board from one start to the next."""
        extra = 2 * self.exchange * watts.radio
        return (self.seconds - self.training) * watts.idle + extra + self.training * watts.training

    def open_times(self, node: int) -> list[Interval]:
        """Return when the drone is within ``radius`` of a node, in order; the flight starts at 0."""
        times = [self._within(node, *leg) for leg in self._legs()]
        return list(_join(time for time in times if time is not None))

    def _stops(self) -> list[Point]:
        """The positions of the whole way: out to the last node, and back to the start."""
        return [*self.route.out, *self.route.out[-2::-1]]

    def _legs(self) -> Iterator[tuple[Point, Point, float, float]]:
        """Yield the motions and the stops: from where, to where, starting when, and for how many seconds."""
        now, stops = 0.0, self._stops()
        last = len(self.route.nodes)
        for number, (here, there) in enumerate(itertools.pairwise(stops), 1):
            flown = math.dist(here, there) / self.speed
            yield here, there, now, flown
            hover = self.exchange * (2 if number == last else 1) if number < len(stops) - 1 else self.training
            yield there, there, now + flown, hover
            now += flown + hover

    def _within(self, node: int, here: Point, there: Point, start: float, seconds: float) -> Interval | None:
        """Return when a motion is within the radius of a node; None if it never is."""
        parts = _within_circle(here, there, self.route.nodes[node], self.radius)
        return None if parts is None else (start + parts[0] * seconds, start + parts[1] * seconds)

    def describe(self) -> dict[str, float]:
        """Return lengths and durations for the report."""
        return {
            "distance": self.route.distance, "seconds": self.seconds, "flight_seconds": self.flight_seconds,
            "exchange_seconds": self.exchange_seconds, "training_seconds": self.training,
        }  # fmt: skip

    def fleet_lines(self, link: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a line of an experiment's fleet for each node, with the times in which its link is open.

        Args:
            link: further keys of each link, such as ``rate``.
        """
        return [
            {
                "kind": f"node-{node}",
                "clients": 1,
                "link": {**link, "open": [list(time) for time in self._rounded(node)], "period": self._period},
            }
            for node in range(len(self.route.nodes))
        ]

    @property
    def _period(self) -> float:
        return math.ceil(100 * self.seconds) / 100

    def _rounded(self, node: int) -> Iterator[Interval]:
        for start, end in self.open_times(node):
            if end - start >= 2 * SHORTEST_OPEN:
                yield round(start, 2), round(end, 2)


def _within_circle(here: Point, there: Point, centre: Point, radius: float) -> Interval | None:
    """Return the parts, from 0 to 1, of a straight motion between which it is within a circle; None if it never is."""
    x, y = here[0] - centre[0], here[1] - centre[1]
    dx, dy = there[0] - here[0], there[1] - here[1]
    length, along, outside = dx * dx + dy * dy, x * dx + y * dy, x * x + y * y - radius * radius
    if length == 0:
        return (0.0, 1.0) if outside <= 0 else None
    root = along * along - length * outside
    if root < 0:
        return None
    first, last = ((-along + sign * math.sqrt(root)) / length for sign in (-1, 1))
    return (max(first, 0.0), min(last, 1.0)) if first <= 1 and last >= 0 else None


def _join(times: Iterator[Interval] | list[Interval]) -> Iterator[Interval]:
    """Join times that touch or overlap; they come in the order of their starts."""
    joined: Interval | None = None
    for start, end in times:
        if joined is not None and start <= joined[1] + 1e-9:
            joined = (joined[0], max(joined[1], end))
            continue
        if joined is not None:
            yield joined
        joined = (start, end)
    if joined is not None:
        yield joined
