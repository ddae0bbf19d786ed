"""Limits how many journal entries one agent can cause: a flood of messages must not fill the disk."""

from __future__ import annotations

from collections import Counter
from typing import Final

REFUSALS_PER_EXCHANGE: Final = 1000
"""Refusals of one agent that are journaled in an exchange."""
JOINS_PER_EXCHANGE: Final = 100
"""How often one agent may join in an exchange."""

MOST_NAMES: Final = 10_000
"""Agents that are counted one by one."""


class RateLimit:
    """Counts, for each agent, the refusals and joins, which need a journal entry without advancing the run."""

    def __init__(self) -> None:
        self._refusals: Counter[str] = Counter()
        self._joins: Counter[str] = Counter()

    def reset(self) -> None:
        """Start counting from 0 again; called when an exchange opens."""
        self._refusals.clear()
        self._joins.clear()

    def may_be_refused(self, agent: str) -> bool:
        """Count one refusal; returns False if the agent is beyond its limit."""
        return _count(self._refusals, agent) <= REFUSALS_PER_EXCHANGE

    def may_join(self, agent: str) -> bool:
        """Count one join; returns False if the agent is beyond its limit."""
        return _count(self._joins, agent) <= JOINS_PER_EXCHANGE


def _count(counts: Counter[str], agent: str) -> int:
    """Count once more for an agent; beyond ``MOST_NAMES`` names, all new ones are counted as one."""
    name = agent if agent in counts or len(counts) < MOST_NAMES else ""
    counts[name] += 1
    return counts[name]
