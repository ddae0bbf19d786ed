"""The energy of one board in a run, from the reports of its agent. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from fedquilt_common.wire.messages import Telemetry

_MOST_AGENTS: Final = 8
"""Agents that report for one board at a time; more than one if somebody has started a second with the same id."""


class _Report(NamedTuple):
    """What a board reported at the Unix time ``at``: joules since the start of its agent, and watts."""

    joules: float
    watts: float | None
    at: float


class BoardEnergy:
    """The energy of one board since it connected to this process. All times are Unix times in seconds.

    Before the first report, and after each one until the next is due, the board is assumed to take the power of that
    report. What it used while the broker kept its reports for a coordinator that was down does not count. A start of an
    agent has a counter of its own; those of two agents with the same id are told apart and added.

    Args:
        before: joules that an earlier process of the coordinator has recorded; None if there are none.

    Attributes:
        joules: the energy; it never decreases, also if the assumed power was too high. None while nothing is known.
    """

    def __init__(self, before: float | None = None) -> None:
        self.joules = before
        self._total = before or 0.0
        self._since: float | None = None
        self._last: _Report | None = None
        self._starts = dict[int, _Report]()

    @property
    def is_reported(self) -> bool:
        """Whether the board has reported energy to this process."""
        return self._last is not None and self.joules is not None

    def connect(self, now: float) -> None:
        """Count from ``now``, unless it counts already."""
        self._since = now if self._since is None else self._since

    def report(self, message: Telemetry, at: float, now: float, interval: float) -> None:
        """Add the energy up to a report.

        Args:
            message: the report; it has joules.
            at: when the board sent it.
            now: when it arrived.
            interval: seconds within which it was due.
        """
        assert message.joules is not None  # noqa: S101 - the caller has checked it
        self.connect(now)
        before, joules = self._starts.pop(message.boot, None), message.joules
        if before is not None:
            joules = max(joules, before.joules)
            self._total += (joules - before.joules) * self._counted_part(before.at, at)
        elif self._last is not None and message.boot > max(self._starts):  # the agent has restarted, and counts from 0
            self._total += joules * self._counted_part(self._last.at, at)
        else:  # the first report, or that of an agent that has counted for longer
            self._total += (message.power or 0.0) * self._count_seconds(at, interval)
        self._last = self._starts[message.boot] = _Report(joules, message.power, at)
        if len(self._starts) > _MOST_AGENTS:
            del self._starts[next(iter(self._starts))]  # the one that has not reported for longest
        self.settle(now, interval)

    def settle(self, now: float, interval: float) -> None:
        """Bring the joules up to ``now``; ``interval``: seconds within which the next report is due."""
        if self._last is None or (self._last.watts is None and not self._total):
            return
        joules = self._total + (self._last.watts or 0.0) * self._count_seconds(now, interval, self._last.at)
        self.joules = max(joules, self.joules or 0.0)

    def _count_seconds(self, until: float, longest: float, after: float = 0.0) -> float:
        """Return the seconds from ``after`` to ``until`` that count, at most ``longest``."""
        return min(max(0.0, until - max(after, self._since or 0.0)), longest)

    def _counted_part(self, after: float, until: float) -> float:
        """Return which part of the time from ``after`` to ``until`` counts, from 0 to 1."""
        since = self._since or 0.0
        if after >= since:
            return 1.0
        return (until - since) / (until - after) if until > since else 0.0
