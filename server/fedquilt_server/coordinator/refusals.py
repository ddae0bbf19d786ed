"""Journals messages of agents that cannot count, within the rate limit."""

from __future__ import annotations

from collections.abc import Callable

from fedquilt_common.types import ClientId
from fedquilt_common.wire.messages import Outcome
from fedquilt_common.wire.texts import shorten_text
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.round.events import Event, Rejected
from fedquilt_server.runs import clock

Record = Callable[[Event], None]
"""Journals an event and passes it to the machine."""


class Refusals:
    """Records refusals; those beyond an agent's limit are dropped, so that a flood cannot fill the disk."""

    def __init__(self, limit: RateLimit, record: Record) -> None:
        self._limit = limit
        self._record = record

    def add(
        self,
        agent: str,
        client: ClientId | None,
        round: int,
        reason: str,
        outcome: Outcome = "rejected",
        *,
        failed: bool = False,
        declined: bool = False,
    ) -> None:
        """Record one refusal, unless the agent is beyond its limit. A client that declines is always recorded."""
        if declined or self._limit.count_refusal(agent):
            text = shorten_text(reason)
            self._record(Rejected(clock.now(), agent, client, round, text, outcome, failed, declined))
