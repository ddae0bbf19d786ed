"""A small world around the machine: an algorithm whose round can be copied, and the moves that are possible in a state.

The coordinator's driver is imitated: it journals an event, hands it to the machine and proceeds after a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Literal, cast

import numpy as np

from fedquilt_common.algorithm_api import Algorithm, Reply, ServerContext, State, Task
from fedquilt_common.types import Arrays, ClientId, Profile
from fedquilt_server.round.events import CutOff, Event, Joined, Left, Rejected, Replied, Resumed, Ticked
from fedquilt_server.round.exchange import AcceptedReplies, Exchange
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy
from fedquilt_server.round.round_counts import RoundCounts
from fedquilt_server.round.snapshots import Standing

PERIOD = 60.0
"""Seconds of a deadline. Time stands still but for ``Elapse``, which reaches the machine's next wake-up."""
START = State({"w": np.zeros(1)}, report={"counted": ()})


@dataclass(frozen=True)
class World:
    """The agents' claims overlap: client 1 is hosted by whoever comes first.

    Attributes:
        claims: what an agent may announce when it joins.
        per_round: clients that the algorithm asks in a round.
    """

    quorum: int
    deadline: bool = True
    shortfall: Literal["wait", "replace"] = "wait"
    rounds: int = 2
    exchanges: int = 2
    clients: int = 3
    per_round: int = 3
    claims: Mapping[str, tuple[tuple[ClientId, ...], ...]] = field(
        default_factory=lambda: {"a": ((0, 1), (0,)), "b": ((1, 2),)}
    )

    @property
    def policy(self) -> Policy:
        """The policy of the run."""
        return Policy(self.rounds, self.clients, self.quorum, PERIOD if self.deadline else None, self.shortfall)

    @property
    def needed(self) -> int:
        """Connected clients with which a run must be able to go on: it waits for others unless it may replace them."""
        return self.quorum if self.deadline and self.shortfall == "replace" else self.clients

    def machine(self, done: int = 0, state: State = START) -> Machine:
        """Return a machine before round ``done + 1``."""
        algorithm = cast(Algorithm, ScriptedAlgorithm(self))
        return Machine(algorithm, self.policy, state, _context, read_replies, done, validates=True)

    def __str__(self) -> str:
        deadline = f"deadline, {self.shortfall}" if self.deadline else "no deadline"
        return f"{self.rounds}x{self.exchanges}, asks {self.per_round}, quorum {self.quorum}, {deadline}"


def _context(
    round: int,
    fleet: Mapping[ClientId, Profile],
    opened: float = 0.0,
    working: Mapping[int, tuple[int, int]] | None = None,
) -> ServerContext:
    """A stand-in that says which clients may be asked, in turn."""
    turned = sorted(fleet, key=lambda client: ((client - round) % 8, client))
    return cast(ServerContext, tuple(turned))


def read_replies(events: Sequence[Replied]) -> list[Arrays]:
    """Tenths, so that the order of a sum shows in its bits."""
    return [{"w": np.array([0.1 * (1 + event.client) * (event.round + 2 * event.exchange)])} for event in events]


@dataclass(frozen=True)
class ScriptedAlgorithm:
    """Asks some clients, then those that replied, in each exchange of a round."""

    world: World

    def round(self, state: State, who: tuple[ClientId, ...]) -> ScriptedRound:
        """Begin a round with the first of the connected clients."""
        return ScriptedRound(self.world.exchanges, state, tuple(sorted(who[: self.world.per_round])))


class ScriptedRound(Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]):
    """A round with its progress in plain attributes: unlike a generator, it can be copied.

    Attributes:
        counted: the clients whose replies it received, by exchange.
    """

    def __init__(self, exchanges: int, state: State, who: tuple[ClientId, ...]) -> None:
        self.exchanges, self.state, self.who = exchanges, state, who
        self.counted: tuple[tuple[ClientId, ...], ...] = ()
        self.sum = state.arrays["w"]

    def send(self, replies: Mapping[ClientId, Reply] | None) -> dict[ClientId, Task]:
        """Receive the replies of an exchange, ask in the next one."""
        if replies is not None:
            self.who = tuple(replies)
            self.counted += (self.who,)
            for reply in replies.values():
                self.sum = self.sum / 3 + reply.arrays["w"]
        number = len(self.counted)
        if number == self.exchanges:
            history = (*self.state.report["counted"], self.counted)
            raise StopIteration(State({"w": self.sum}, report={"counted": history}))
        arrays = self.state.arrays if number == 0 else {"w": self.sum}
        return {client: Task(f"exchange-{number}", arrays) for client in self.who}

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """End the round; called by ``close``."""
        raise kind


@dataclass(frozen=True)
class Elapse:
    """Time passes until the machine's next wake-up; nothing is handled yet."""


Move = Event | Elapse


def fork(machine: Machine) -> Machine:
    """Return a machine that goes on from the same state, without touching the first."""
    twin = object.__new__(Machine)
    for name, value in vars(machine).items():
        if type(value) in _COPIES:
            vars(twin)[name] = _COPIES[type(value)](value)
        elif isinstance(value, _SHARED):
            vars(twin)[name] = value
        else:
            raise TypeError(f"Machine.{name} is a {type(value).__name__}: teach the exploration to copy it")
    return twin


def _copy_exchange(exchange: Exchange) -> Exchange:
    return replace(exchange, replies=dict(exchange.replies))


def _copy_counts(counts: RoundCounts) -> RoundCounts:
    times = {agent: list(seconds) for agent, seconds in counts._train_seconds.items()}
    twin = replace(counts, outcomes=Counter(counts.outcomes), missing=dict(counts.missing), _train_seconds=times)
    twin.dropped = set(counts.dropped)
    return twin


_COPIES: dict[type, Callable[[Any], object]] = {
    AcceptedReplies: AcceptedReplies, dict: dict, set: set,
    Exchange: _copy_exchange, RoundCounts: _copy_counts, ScriptedRound: copy,
}  # fmt: skip
"""How to copy what a machine changes in place."""
_SHARED = (type(None), bool, int, float, Policy, State, ScriptedAlgorithm, Standing, FunctionType)
"""What a machine never changes in place."""


def key_of(machine: Machine, now: float) -> tuple[object, ...]:
    """All that decides what a machine does from now on.

    Left out: boot numbers and times of day, which matter only relative to each other; counters of the report; the
    model, which is a function of the replies that counted (``search.py`` checks that).
    """
    exchange = machine.exchange
    first = machine._first_joined
    wake = machine.wake_at
    opened = exchange and (
        exchange.number, tuple((c, task.kind) for c, task in exchange.tasks.items()),
        exchange.deadline is not None, exchange.overdue, tuple(sorted(exchange.replies)),
    )  # fmt: skip
    return (
        machine.run_state.value, machine.done, opened,
        wake if wake is None else wake - now,
        None if machine.done or opened else (first if first is None else min(now - first, PERIOD), machine._waited),
        tuple((name, agent.clients) for name, agent in machine.agents.items()),
        tuple(sorted(machine.host_of.items())), tuple(sorted(machine._silent)),
        tuple(sorted(machine._accepted)), tuple(sorted(machine._before.counted.items())),
        opened and (tuple(sorted(machine._now.counted.items())), tuple(sorted(machine._asked_fleet))),
    )  # fmt: skip


def moves(world: World, machine: Machine, now: float, boots: Mapping[str, int]) -> Iterator[Move]:
    """Yield everything that may happen next, useless and repeated events included."""
    for agent, claims in world.claims.items():
        boot = boots[agent]
        yield from (Joined(now, agent, boot + 1, clients) for clients in claims)
        yield from (Left(now, agent, boot), Left(now, agent, boot - 1))
    for client in range(world.clients):
        host = machine.host_of.get(client, "b")
        for number in range(1, world.rounds + 1):
            for exchange in range(world.exchanges):
                yield Replied(now, host, client, number, exchange, f"{client}-{number}.{exchange}", 1.0)
        yield from (Rejected(now, name, client, machine.round, "it failed") for name in world.claims)
    yield Ticked(now)
    if not machine.finished:
        yield Resumed(now)
        yield CutOff(now, PERIOD)
    if machine.exchange is not None:
        yield machine.restart_event(now, "a reply is damaged")
    if machine.wake_at is not None and machine.wake_at > now:
        yield Elapse()


def goes_on(machine: Machine, move: Move) -> bool:
    """Whether the move is one that happens without anybody's help: time passes, a connected client does its task."""
    match move:
        case Replied(client=client, round=number, exchange=exchange):
            open_exchange = machine.exchange and (machine.round, machine.exchange.number)
            return open_exchange == (number, exchange) and client in machine.awaited and client in machine.host_of
        case Ticked() | Elapse():
            return True
    return False
