"""Limits how many journal entries one agent can cause: a flood of messages must not fill the disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from fedquilt_common.types import ClientId

REFUSALS_PER_EXCHANGE: Final = 1000
"""Refusals of one agent that are journaled in an exchange."""
JOINS_PER_EXCHANGE: Final = 100
"""How often one agent may join in an exchange; one more for each ``JOIN_SECONDS``."""
JOIN_SECONDS: Final = 60.0
"""More often than a board joins on a slow link, where each chunk takes longer than the silence that is allowed."""

MOST_NAMES: Final = 10_000
"""Agents that are counted one by one."""


class RateLimit:
    """Counts, for each agent, the refusals and joins, which need a journal entry without advancing the run.

    Args:
        now: returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._refusals: Counter[str] = Counter()
        self._joins: dict[str, tuple[float, float]] = {}
        self._failures: dict[tuple[str, ClientId], str] = {}

    def reset(self) -> None:
        """Start counting from 0 again; called when an exchange opens."""
        self._refusals.clear()
        self._joins.clear()
        self._failures.clear()

    def count_refusal(self, agent: str) -> bool:
        """Count one refusal; returns whether the agent is within its limit."""
        name = _name(self._refusals, agent)
        self._refusals[name] += 1
        return self._refusals[name] <= REFUSALS_PER_EXCHANGE

    def count_join(self, agent: str) -> bool:
        """Count one join, which is forgotten after a while; returns whether the agent is within its limit."""
        name, now = _name(self._joins, agent), self._now()
        count, at = self._joins.get(name, (0.0, now))
        count = max(0.0, count - (now - at) / JOIN_SECONDS)
        is_within = count + 1 <= JOINS_PER_EXCHANGE
        self._joins[name] = count + is_within, now
        return is_within

    def note_failure(self, agent: str, client: ClientId, reason: str) -> bool:
        """Remember a report of a failure; returns whether it is the agent's first one of it in this exchange."""
        if self._failures.get((agent, client)) == reason:
            return False
        if len(self._failures) < MOST_NAMES:
            self._failures[agent, client] = reason
        return True

    def forget_failures(self, agent: str) -> None:
        """Forget what an agent has reported: it has connected, and retries its tasks."""
        self._failures = {key: reason for key, reason in self._failures.items() if key[0] != agent}


def _name(counts: Collection[str], agent: str) -> str:
    """Return the name under which an agent is counted: beyond ``MOST_NAMES`` names, all new ones are counted as one."""
    return agent if agent in counts or len(counts) < MOST_NAMES else ""
