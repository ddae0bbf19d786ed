"""Checks the machine's invariants after every event: always in tests, in a run with FEDQUILT_VALIDATE=1."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fedquilt_common.types import ClientId
from fedquilt_server.round.policy import Exchange
from fedquilt_server.round.snapshots import ReplyId
from fedquilt_server.round.states import RunState

if TYPE_CHECKING:
    from fedquilt_server.round.machine import Machine


def validate(
    machine: Machine, accepted: Collection[ReplyId], silent: Collection[ClientId], *, has_generator: bool
) -> None:
    """Check the invariants of a machine.

    Args:
        accepted: the replies that count.
        silent: the clients that are not asked.
        has_generator: whether a round of the algorithm is under way.

    Raises:
        AssertionError: names the invariant that does not hold, and the values.
    """
    _validate_hosts(machine)
    _require(
        machine.finished == (machine.done >= machine.policy.rounds) or _is_closed(machine), "finished", machine.done
    )
    _require(
        (machine.exchange is not None) == has_generator, "an open exchange has a round under way", machine.exchange
    )
    _require(all(0 <= c < machine.policy.clients for c in silent), "silent clients exist", silent)
    if machine.exchange is not None:
        _validate_exchange(machine, machine.exchange, accepted)


def _is_closed(machine: Machine) -> bool:
    return machine.run_state is RunState.CLOSED


def _validate_hosts(machine: Machine) -> None:
    """Each hosted client has a connected agent that claims it, and each claimed client has a host."""
    for client, name in machine.host_of.items():
        _require(name in machine.agents, "the host of each client is connected", (client, name))
        _require(client in machine.agents[name].clients, "the host of each client claims it", (client, name))
    for name, agent in machine.agents.items():
        for client in agent.clients:
            _require(client in machine.host_of, "each claimed client has a host", (client, name))
            _require(client < machine.policy.clients, "each claimed client exists", (client, name))


def _validate_exchange(machine: Machine, exchange: Exchange, accepted: Collection[ReplyId]) -> None:
    """Exactly the replies of the open exchange are accepted, each to a task, and at least one is missing."""
    _require(set(exchange.replies) <= set(exchange.tasks), "each reply has a task", sorted(exchange.replies))
    for client, reply in exchange.replies.items():
        ids = reply.client, reply.round, reply.exchange
        _require(ids == (client, machine.round, exchange.number), "each reply answers this exchange", ids)
        _require(ids in accepted, "each reply of this exchange is accepted once", ids)
    counted = {key[0] for key in accepted if key[1:] == (machine.round, exchange.number)}
    _require(counted == set(exchange.replies), "each accepted reply counts", sorted(counted))
    complete = bool(exchange.tasks) and set(exchange.replies) == set(exchange.tasks)
    _require(not complete, "an exchange with all replies is closed", sorted(exchange.replies))


def _require(holds: bool, invariant: str, values: object) -> None:
    if not holds:
        raise AssertionError(f"invariant of the machine: {invariant}; found {values}")
