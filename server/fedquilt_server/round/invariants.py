"""Checks the machine's invariants after every event: always in tests, in a run with FEDQUILT_VALIDATE=1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_server.round.exchange import Exchange, ReplyId
from fedquilt_server.round.policy import KnownAgent, Policy
from fedquilt_server.round.states import RunState


@dataclass(frozen=True)
class MachineView:
    """What of the machine its invariants speak about.

    Attributes:
        done: rounds that are finished.
        agents: the connected agents.
        host_of: the agent that hosts each connected client.
        exchange: the open exchange.
        accepted: the replies that count, each with the exchange in which it counts.
        silent: the clients that are not asked.
        has_round: whether a round of the algorithm is under way.
    """

    policy: Policy
    run_state: RunState
    done: int
    agents: Mapping[str, KnownAgent]
    host_of: Mapping[ClientId, str]
    exchange: Exchange | None
    accepted: Mapping[ReplyId, ExchangeId]
    silent: Collection[ClientId]
    has_round: bool


def validate(machine: MachineView) -> None:
    """Check the invariants of a machine.

    Raises:
        AssertionError: names the invariant that does not hold, and the values.
    """
    last_done = machine.done >= machine.policy.rounds
    finished = machine.run_state is RunState.FINISHED
    closed = machine.run_state is RunState.CLOSED
    _require(finished == last_done or closed, "a run is finished after its last round", machine.done)
    _require((machine.exchange is not None) == machine.has_round, "an open exchange has a round", machine.exchange)
    _require(all(0 <= c < machine.policy.clients for c in machine.silent), "silent clients exist", machine.silent)
    _validate_hosts(machine)
    if machine.exchange is not None:
        _validate_exchange(machine, machine.exchange)


def _validate_hosts(machine: MachineView) -> None:
    """Each hosted client has a connected agent that claims it, and each claimed client has a host."""
    for client, name in machine.host_of.items():
        _require(name in machine.agents, "the host of each client is connected", (client, name))
        _require(client in machine.agents[name].clients, "the host of each client claims it", (client, name))
    for name, agent in machine.agents.items():
        for client in agent.clients:
            _require(client in machine.host_of, "each claimed client has a host", (client, name))
            _require(client < machine.policy.clients, "each claimed client exists", (client, name))


def _validate_exchange(machine: MachineView, exchange: Exchange) -> None:
    """Exactly the replies of the open exchange are accepted, each to a task, and at least one is missing."""
    _require(set(exchange.replies) <= set(exchange.clients), "each reply has a task", sorted(exchange.replies))
    _require(exchange.id[0] == machine.done + 1, "the open exchange is of the open round", exchange.id)
    _require(not set(exchange.tasks) & set(exchange.earlier), "a client has one task", sorted(exchange.earlier))
    for client, reply in exchange.replies.items():
        ids = reply.client, reply.round, reply.exchange
        _require(ids[0] == client and ids[1:] == exchange.asked(client), "each reply answers its client's task", ids)
        _require(ids in machine.accepted, "each reply of this exchange is accepted once", ids)
    counted = {key[0] for key, counts_in in machine.accepted.items() if counts_in == exchange.id}
    _require(counted == set(exchange.replies), "each accepted reply counts", sorted(counted))
    _require(not exchange.declined & set(exchange.replies), "a client that declined has no reply", exchange.declined)
    complete = bool(exchange.replies) and len(exchange.replies) >= exchange.wanted
    _require(not complete, "an exchange with all replies is closed", sorted(exchange.replies))


def _require(holds: bool, invariant: str, values: object) -> None:
    if not holds:
        raise AssertionError(f"invariant of the machine: {invariant}; found {values}")
