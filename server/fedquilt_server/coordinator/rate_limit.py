"""How much of one agent is too much: a flood must not fill the journal's disk."""

from __future__ import annotations

from collections import Counter
from typing import Final

NOISE_PER_EXCHANGE: Final = 1000
"""So many refusals of one agent are journaled and answered in an exchange, and no more."""
ARRIVALS_PER_EXCHANGE: Final = 100
"""So often may one agent join in an exchange."""


class RateLimit:
    """Counts by agent what costs the coordinator a journal entry without moving the run on."""

    def __init__(self) -> None:
        self._refusals: Counter[str] = Counter()
        self._arrivals: Counter[str] = Counter()

    def next_exchange(self) -> None:
        """Everybody starts again."""
        self._refusals.clear()
        self._arrivals.clear()

    def may_be_refused(self, agent: str) -> bool:
        """Count one refusal; False once there were too many."""
        self._refusals[agent] += 1
        return self._refusals[agent] <= NOISE_PER_EXCHANGE

    def may_join(self, agent: str) -> bool:
        """Count one arrival; False once there were too many."""
        self._arrivals[agent] += 1
        return self._arrivals[agent] <= ARRIVALS_PER_EXCHANGE
