"""Counts of the open round, for its row in the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fedquilt_common.types import ClientId
from fedquilt_server.round.events import CutOff, Replied, Resumed, Tally
from fedquilt_server.round.exchange import CountedReply, Exchange
from fedquilt_server.round.policy import KnownAgent


@dataclass
class RoundCounts:
    """Counts the replies' outcomes and training times since the round opened.

    Attributes:
        opened_at: Unix time in seconds.
        outcomes: replies by outcome: accepted, late, rejected, duplicate.
        first_exchange: replies and tasks of the round's first exchange.
        missing: exchange -> client -> its agent, of the clients without a reply that counts.
        dropped: accepted replies that did not count any more when the round started again.
        ages: rounds since the task of each reply was sent, of exchanges that do not wait for all.
        resumed: the restarts of the coordinator.
    """

    opened_at: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    first_exchange: tuple[int, int] = (0, 0)
    missing: dict[int, dict[ClientId, str]] = field(default_factory=dict)
    dropped: set[CountedReply] = field(default_factory=set)
    ages: list[int] = field(default_factory=list)
    resumed: tuple[Resumed, ...] = ()
    _train_seconds: dict[str, list[float]] = field(default_factory=dict)

    def not_accepted(self) -> dict[str, int]:
        """Return the outcomes of the replies that were not accepted."""
        return {outcome: count for outcome, count in self.outcomes.items() if outcome != "accepted"}

    def restart(self, at: float, outcomes: Mapping[str, int] | None = None) -> None:
        """Count for a round that opens at ``at``: from 0, or from ``outcomes``."""
        self.opened_at = at
        self.outcomes = Counter(outcomes)
        self.first_exchange = 0, 0
        self.drop(())
        self.dropped.clear()

    def drop(self, replies: Iterable[CountedReply]) -> None:
        """Delete the training times and the missing clients: the round starts again without these replies."""
        self.dropped.update(replies)
        self._train_seconds.clear()
        self.missing.clear()
        self.ages.clear()

    def note_gap(self, event: Resumed | CutOff) -> None:
        """Note a time in which no client could reply; only the one before a restart counts as away."""
        if isinstance(event, Resumed):
            self.resumed += (event,)

    def note_closed(self, exchange: Exchange) -> None:
        """Note the clients that an exchange leaves out, and how many have replied, when it closes."""
        if exchange.left_out:
            self.missing[exchange.number] = {client: exchange.hosts.get(client, "") for client in exchange.left_out}
        if exchange.until is not None:
            self.ages += [exchange.id[0] - round for round, _ in exchange.answers.values()]
        if exchange.number == 0:
            self.first_exchange = len(exchange.replies), len(exchange.clients)

    def note_training(self, event: Replied) -> None:
        """Add the training time that a reply reports, limited to the time since the round opened."""
        reported = event.metrics.get("train_seconds", 0.0)
        seconds = max(0.0, min(reported, event.at - self.opened_at))
        self._train_seconds.setdefault(event.agent, []).append(seconds)

    def tally(self, agents: Mapping[str, KnownAgent], counted: Collection[CountedReply]) -> Tally:
        """Return the counts; the training time is that of the busiest agent.

        An agent's workers share its tasks; a single task runs on one worker.

        Args:
            agents: the agents by name.
            counted: the round's accepted replies that count.
        """
        workers = {name: agent.workers for name, agent in agents.items()}
        busy = (max(max(s), sum(s) / workers.get(name, 1)) for name, s in self._train_seconds.items())
        clients, asked = self.first_exchange
        return Tally(
            clients=clients,
            asked=asked,
            late=self.outcomes["late"],
            rejected=self.outcomes["rejected"],
            duplicates=self.outcomes["duplicate"],
            train_seconds=max(busy, default=0.0),
            opened_at=self.opened_at,
            replies=len(counted),
            missing=dict(self.missing),
            discarded=_by_exchange(self.dropped.difference(counted)),
            ages=tuple(self.ages),
            away_seconds=sum(event.away for event in self.resumed if event.at > self.opened_at),
        )


def _by_exchange(replies: Iterable[CountedReply]) -> dict[int, list[ClientId]]:
    clients: dict[int, list[ClientId]] = {}
    for exchange, client in sorted((exchange, client) for client, exchange in replies):
        clients.setdefault(exchange, []).append(client)
    return clients
