"""The clients whose last answer to the open exchange was a failure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fedquilt_common.types import ClientId
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied
from fedquilt_server.round.machine import Machine

_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Failure:
    """A failure, and the process that reported it: its agent and the agent's boot epoch."""

    agent: str
    boot: int
    reason: str


def pick_failures(failing: Mapping[ClientId, str], most: int) -> dict[ClientId, str]:
    """Return at most ``most`` of the failing clients, in client order, with as many different reasons as possible.

    Reasons that differ in their numbers only count as one.
    """
    kinds = {client: _NUMBER.sub("0", reason) for client, reason in failing.items()}
    firsts = {kind: client for client, kind in reversed(kinds.items())}
    repeated = [client for client, kind in kinds.items() if firsts[kind] != client]
    return {client: failing[client] for client in sorted([*sorted(firsts.values()), *repeated][:most])}


class Failures:
    """Follows the events of an exchange.

    A failure counts as long as the process that reported it hosts the client. An agent that restarts retries its tasks,
    and an agent that has left may do so when it returns.
    """

    def __init__(self) -> None:
        self._failures: dict[ClientId, Failure] = {}

    def clear(self) -> None:
        """Forget all failures; called when an exchange opens: every agent retries."""
        self._failures.clear()

    def take(self, event: Event, machine: Machine) -> bool:
        """Take an event that the machine has handled; returns whether the failing clients may be others now."""
        match event:
            case Rejected(failed=True, declined=False) if event.client is not None:
                return self._add(event, event.client, machine)
            case Replied():
                return self._failures.pop(event.client, None) is not None
            case Joined() | Left():
                return bool(self._failures)
        return False

    def retry(self, agent: str) -> bool:
        """Forget the failures of an agent that has connected: it retries its tasks. Returns whether it had any."""
        retried = [client for client, failure in self._failures.items() if failure.agent == agent]
        for client in retried:
            del self._failures[client]
        return bool(retried)

    def _add(self, event: Rejected, client: ClientId, machine: Machine) -> bool:
        agent, exchange = machine.agents.get(event.agent), machine.exchange
        is_asked = exchange is not None and client in exchange.clients and client not in exchange.replies
        if agent is None or machine.host_of.get(client) != event.agent or not is_asked:
            return False
        self._failures[client] = Failure(event.agent, agent.boot, event.reason)
        return True

    def current(self, machine: Machine) -> dict[ClientId, str]:
        """Return the reason of each client that fails now, in client order."""
        return {
            client: failure.reason
            for client, failure in sorted(self._failures.items())
            if machine.host_of.get(client) == failure.agent and machine.agents[failure.agent].boot == failure.boot
        }
