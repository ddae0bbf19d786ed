"""The policy of a run, and the machine's record of an agent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from fedquilt_common.types import ClientId, Profile
from fedquilt_server.round.events import Joined

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
        skips_failed: close an exchange before its deadline if only clients are missing that have failed, and the others
            are a quorum.
        firm: fewer replies than the quorum never close an exchange, even when clients decline.
    """

    rounds: int
    clients: int
    quorum: int
    deadline: float | None = None
    shortfall: Literal["wait", "replace"] = "wait"
    skips_failed: bool = False
    firm: bool = False

    def least(self, able: int) -> int:
        """Return the clients that an exchange or a round needs if ``able`` ones have not declined."""
        return self.quorum if self.firm else min(self.quorum, able)

    def can_lose(self, clients: Collection[ClientId]) -> bool:
        """Whether a round can do without these clients, which do no task any more."""
        able = self.clients - len(clients)
        return able >= max(1, self.least(able))

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


def move_clients(
    agent: str, keep: Collection[ClientId], host_of: dict[ClientId, str], agents: Mapping[str, KnownAgent]
) -> frozenset[ClientId]:
    """Give an agent's clients, except ``keep``, to the next agent that claims them, in the order of joining.

    The agent hosts those of ``keep`` that no other one hosts.

    Returns:
        The clients that the agent does not host any more.
    """
    lost = frozenset(client for client, host in host_of.items() if host == agent).difference(keep)
    moved = set(lost)
    for client in moved:
        del host_of[client]
    for name, other in agents.items():
        if name != agent and moved:
            taken = moved.intersection(other.clients)
            host_of.update(dict.fromkeys(sorted(taken), name))
            moved -= taken
    for client in keep:
        host_of.setdefault(client, agent)
    return lost
