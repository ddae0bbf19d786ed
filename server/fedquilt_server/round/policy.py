"""The policy of a run, and the machine's records of an agent and of the open exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from fedquilt_common.algorithm_api import Task
from fedquilt_common.types import ClientId, Profile
from fedquilt_common.wire.messages import Outcome
from fedquilt_server.round.events import Joined, Replied

NO_BUDGET: Final = "every client declines: its privacy budget is used up, or its board's owner allows less"
"""Why a run ends in which no client does tasks any more."""
TOO_FEW: Final = "fewer clients than participation.quorum, which secure aggregation needs, have privacy budget left"
"""Why a run ends in which fewer clients do tasks than any exchange needs."""


@dataclass(frozen=True)
class KnownAgent:
    """An agent that is connected; ``boot`` grows with each of its starts."""

    boot: int
    clients: tuple[ClientId, ...]
    workers: int
    profile: Profile


@dataclass(frozen=True)
class Policy:
    """When a run starts, and when an exchange closes.

    Attributes:
        rounds: rounds of the run.
        clients: clients of the experiment, numbered from 0.
        quorum: replies that close an exchange after its deadline.
        deadline: seconds after which a quorum is enough; None waits for all replies.
        shortfall: after a deadline without a quorum, keep waiting, or replace the clients that did not reply.
        firm: fewer replies than the quorum never close an exchange, also when clients decline.
    """

    rounds: int
    clients: int
    quorum: int
    deadline: float | None = None
    shortfall: Literal["wait", "replace"] = "wait"
    firm: bool = False

    def least(self, able: int) -> int:
        """Return the clients that an exchange or a round needs if ``able`` ones have not declined."""
        return self.quorum if self.firm else min(self.quorum, able)

    @property
    def no_budget(self) -> str:
        """Why a run ends in which too many clients have declined."""
        return TOO_FEW if self.firm else NO_BUDGET

    def end_after(self, round: int) -> Policy:
        """Return the policy of a run whose last round is ``round``."""
        return replace(self, rounds=round)

    def agent_of(self, event: Joined) -> KnownAgent:
        """Return the record of an agent after this event; clients that the experiment does not have are left out."""
        clients = tuple(client for client in event.clients if client < self.clients)
        return KnownAgent(event.boot, clients, event.workers, event.profile)


@dataclass
class Exchange:
    """The open exchange: the tasks, and the replies that count.

    Attributes:
        number: from 0 within the round.
        deadline: Unix time in seconds; None if the exchange waits for all replies.
        hosts: the agent that hosted each client when the exchange opened.
        declined: clients that will not reply, because their privacy budget or their board's owner does not allow it.
        overdue: the deadline has passed once, so a quorum is enough.
    """

    number: int
    tasks: Mapping[ClientId, Task]
    deadline: float | None
    hosts: Mapping[ClientId, str] = field(default_factory=dict)
    replies: dict[ClientId, Replied] = field(default_factory=dict)
    overdue: bool = False
    declined: set[ClientId] = field(default_factory=set)

    def is_complete(self, at: float, policy: Policy) -> bool:
        """Whether enough clients have replied at this time: all of them, or a quorum once the deadline has passed.

        Clients that have declined are not waited for, but without any reply no exchange is complete.
        """
        self.overdue = self.overdue or self.is_late(at)
        enough = policy.least(self.able) if self.overdue else max(self.able, policy.least(self.able))
        return len(self.replies) >= enough and (bool(self.replies) or not self.tasks)

    @property
    def able(self) -> int:
        """Number of clients with a task that have not declined."""
        return len(self.tasks) - len(self.declined)

    def can_close(self, policy: Policy) -> bool:
        """Whether replies can still close the exchange, although clients have declined."""
        return bool(self.missing or self.replies) and self.able >= policy.least(self.able)

    @property
    def lasting(self) -> bool:
        """Whether the round must not start again because of missing replies."""
        return any(task.lasting for task in self.tasks.values())

    def accept(self, event: Replied) -> None:
        """Add a reply that counts, also of a client that declined before."""
        self.replies[event.client] = event
        self.declined.discard(event.client)

    def lacks_only(self, client: ClientId) -> bool:
        """Whether this client's reply is the only one that is missing."""
        return client in self.tasks and len(self.replies) + len(self.declined) + 1 == len(self.tasks)

    @property
    def missing(self) -> list[ClientId]:
        """The clients with a task that have neither replied nor declined, in client order."""
        return sorted(set(self.tasks) - set(self.replies) - self.declined)

    def is_late(self, at: float) -> bool:
        """Whether the deadline has passed at this time."""
        return self.deadline is not None and at >= self.deadline


def judge_reply(
    reply: tuple[ClientId, int, int],
    accepted: Collection[tuple[ClientId, int, int]],
    open_round: int,
    open_exchange: Exchange | None,
    finished: bool,
) -> tuple[Outcome, str]:
    """Return the outcome of a complete and valid reply, and the reason if it does not count.

    Args:
        reply: its client, round and exchange.
        accepted: the replies that count.
        open_round: number of the open round, or of the next one.
        open_exchange: None if none is open.
        finished: whether the run is over.
    """
    client, round, exchange = reply
    number = open_exchange.number if open_exchange else 0
    if reply in accepted:
        return "duplicate", "a reply of this client has been counted"
    if finished or (round, exchange) < (open_round, number):
        return "late", f"round {round}, exchange {exchange} is closed"
    if open_exchange is None or (round, exchange) != (open_round, number):
        return "rejected", f"round {round}, exchange {exchange} is not open"
    if client not in open_exchange.tasks:
        return "rejected", f"client {client} was not asked in round {round}"
    return "accepted", ""


def same_task(task: Task, other: Task) -> bool:
    """Whether a reply to one task answers the other."""
    same_arrays = task.arrays is other.arrays or not (len(task.arrays) or len(other.arrays))
    return same_arrays and _request(task) == _request(other)


def _request(task: Task) -> tuple[object, ...]:
    """Return all of a task but its arrays."""
    return task.kind, task.scalars, task.slice, task.labels, task.expect, task.dtypes


def move_clients(
    agent: str, keep: Collection[ClientId], host_of: dict[ClientId, str], agents: Mapping[str, KnownAgent]
) -> None:
    """Give an agent's clients, except ``keep``, to the next agent that claims them, in the order of joining."""
    moved = {client for client, host in host_of.items() if host == agent} - set(keep)
    for client in moved:
        del host_of[client]
    for name, other in agents.items():
        if name != agent and moved:
            taken = moved.intersection(other.clients)
            host_of.update(dict.fromkeys(sorted(taken), name))
            moved -= taken
