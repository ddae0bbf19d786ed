"""Any order of joins, leaves, replies, refusals and ticks, with crashes anywhere: what the machine must never do.

Two machines take the same events. One never crashes. The other is thrown away at any moment and built again from the
last checkpoint and the journaled events after it, as the coordinator does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import Arrays, ClientId, Profile
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.round.events import (
    Checkpoint,
    Continued,
    Event,
    Finish,
    Joined,
    Left,
    Paused,
    Receipt,
    Rejected,
    Replied,
    Send,
    Ticked,
    decode_event,
    encode_event,
    skip_dropped,
)
from fedquilt_server.round.exchange import same_task
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy

CLIENTS = 4
SPLIT = {"pi": (0, 1), "jetson": (2, 3), "thief": (0, 3)}
MORE = (0, 1, 2, 3)
Key = tuple[ClientId, int, int]


def no_model() -> Any:
    """These machines need no tools."""
    return None


@dataclass(frozen=True)
class Watched(FedAvg):
    """One or two exchanges; ``seen`` gets what the algorithm was handed, in the order of the rounds."""

    two: bool = False
    seen: list[dict[ClientId, Reply]] = field(default_factory=list)

    def round(self, state: State, lab: ServerContext) -> Round:
        replies = yield {client: Task("train", state.arrays) for client in lab.select()}
        self.seen.append(dict(replies))
        if self.two:
            middle = mean(replies)
            replies = yield {client: Task("digest", middle) for client in replies}
            self.seen.append(dict(replies))
        return State(mean(replies, like=state.arrays), {"count": np.array([len(replies)])})


def load(events: Sequence[Replied]) -> list[Arrays]:
    """A reply's digest stands for its numbers; thirds, so that the order of summing shows in the bits."""
    return [{"w": np.full(3, int(event.digest) / 3, np.float32)} for event in events]


def lab(
    number: int,
    fleet: Mapping[ClientId, Profile],
    opened: float = 0.0,
    working: Mapping[int, tuple[int, int]] | None = None,
) -> ServerContext:
    return RoundContext(number, fleet, 7, 99, 99, 3, no_model())


@dataclass
class Book:
    """One machine with what its coordinator keeps: the journal, and the newest checkpoint with its place in it."""

    policy: Policy
    algorithm: Watched
    machine: Machine
    journal: list[tuple[str, str]] = field(default_factory=list)
    checkpoint: tuple[int, Checkpoint] | None = None
    states: dict[int, State] = field(default_factory=dict)
    tallies: list[object] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    finished: int = 0

    def take(self, event: Event) -> None:
        self.journal.append(encode_event(event))
        self._carry_out(len(self.journal), event)

    def _carry_out(self, place: int, event: Event, *, replaying: bool = False) -> None:
        foreseen, was_open = self.machine.would_close(event), self.machine.exchange is not None
        commands = self.machine.handle(event)
        advanced = any(isinstance(command, Checkpoint | Send) for command in commands)
        closed = was_open and any(isinstance(command, Checkpoint) for command in commands)
        assert foreseen or not (isinstance(event, Replied) and advanced), "the driver must know it beforehand"
        assert foreseen or not closed, "the page shows that the coordinator averages"
        while commands:
            command, *commands = commands
            match command:
                case Checkpoint():
                    self.checkpoint = place, command
                    self.states[command.round] = command.state
                    self.tallies.append(command.tally)
                    commands += self.machine.proceed(command.state, command.at)
                case Receipt() if not replaying:
                    self.receipts.append(command)
                case Finish():
                    self.finished += 1

    def crash(self) -> None:
        """Forget everything but the journal and the last checkpoint."""
        place, done = self.checkpoint or (0, None)
        state = done.state if done else State({"w": np.zeros(3, np.float32)})
        self.machine = Machine(self.algorithm, self.policy, state, lab, load, done.round if done else 0, validates=True)
        again = self.machine.restore(done.snapshot, done.at) if done else []
        self.finished = sum(isinstance(command, Finish) for command in again)
        since = [(number, decode_event(*row)) for number, row in list(enumerate(self.journal, 1))[place:]]
        for number, event in skip_dropped(since):
            self._carry_out(number, event, replaying=True)


def view(book: Book) -> dict[str, object]:
    """All that decides what a machine does next."""
    machine = book.machine
    exchange = machine.exchange
    opened = exchange and (exchange.number, sorted(exchange.tasks), exchange.deadline, exchange.overdue)
    return {
        "round": (machine.round, machine.finished, machine.wake_at),
        "exchange": opened,
        "replies": exchange and exchange.replies,
        "kept": machine.snapshot(),
        "claims": (list(machine.agents), machine.host_of),
        "counts": (machine._counts.outcomes, machine._counts._train_seconds, machine._counts.missing),
        "tallies": book.tallies,
    }


def same_bits(one: Arrays, other: Arrays) -> bool:
    return set(one) == set(other) and all(one[n].tobytes() == other[n].tobytes() for n in one)


def weight(client: int, number: int) -> float:
    return 1.0 + (client + number) % 3


class Federation(RuleBasedStateMachine):
    """Hypothesis drives it."""

    two = False

    @initialize(
        shortfall=st.sampled_from(["wait", "replace"]),
        quorum=st.integers(1, 3),
        rounds=st.integers(1, 4),
        skips=st.booleans(),
    )
    def begin(self, shortfall: str, quorum: int, rounds: int, skips: bool) -> None:
        assert shortfall in ("wait", "replace")
        policy = Policy(rounds, CLIENTS, quorum, 60.0, "wait" if shortfall == "wait" else "replace", skips)
        self.now, self.boots, self.highest = 0.0, Counter[str](), 1
        self.dies, self.restarts = False, 0
        self.declined = set[int]()
        self.steady, self.shaken = (self._book(policy) for _ in range(2))

    def _book(self, policy: Policy) -> Book:
        algorithm = Watched(two=self.two)
        start = State({"w": np.zeros(3, np.float32)})
        return Book(policy, algorithm, Machine(algorithm, policy, start, lab, load, validates=True))

    def _both(self, event: Event) -> None:
        self.steady.take(event)
        if self.dies:
            self.shaken.journal.append(encode_event(event))
            self.shaken.crash()
        else:
            self.shaken.take(event)
        self.dies = False

    @rule(agent=st.sampled_from(sorted(SPLIT)), workers=st.integers(1, 2), greedy=st.booleans())
    def join(self, agent: str, workers: int, greedy: bool) -> None:
        self.now += 1
        self.boots[agent] += 1
        hosts = dict(self.steady.machine.host_of)
        clients = MORE if greedy else SPLIT[agent]
        self._both(Joined(self.now, agent, self.boots[agent], clients, workers))
        kept = {client: host for client, host in hosts.items() if host != agent or client in clients}
        assert kept.items() <= self.steady.machine.host_of.items()

    @rule(agent=st.sampled_from(sorted(SPLIT)), stale=st.booleans())
    def leave(self, agent: str, stale: bool) -> None:
        known = self.steady.machine.agents.get(agent)
        self._both(Left(self.now, agent, self.boots[agent] - stale))
        if known is not None and stale:
            assert self.steady.machine.agents[agent] == known

    def _reply(self, client: int, number: int, exchange: int, seconds: float) -> None:
        self.now += 1
        host = self.steady.machine.host_of.get(client, "pi")
        digest = str(100 * number + 10 * exchange + client)
        metrics = {"train_seconds": seconds}
        self._both(Replied(self.now, host, client, number, exchange, digest, weight(client, number), metrics))

    @precondition(lambda self: self.steady.machine.exchange is not None)
    @rule(data=st.data(), seconds=st.floats(0, 9))
    def reply(self, data: st.DataObject, seconds: float) -> None:
        exchange = self.steady.machine.exchange
        assert exchange is not None
        client = data.draw(st.sampled_from(sorted(exchange.tasks)))
        self._reply(client, self.steady.machine.round, exchange.number, seconds)

    @rule(client=st.integers(0, CLIENTS), back=st.integers(-1, 2), exchange=st.integers(0, 1))
    def reply_whatever(self, client: int, back: int, exchange: int) -> None:
        self._reply(client, max(0, self.steady.machine.round - back), exchange, 1.0)

    @rule(client=st.integers(0, CLIENTS - 1), outcome=st.sampled_from(["rejected", "late", "duplicate"]))
    def refuse(self, client: int, outcome: str) -> None:
        assert outcome in ("rejected", "late", "duplicate")
        host = self.steady.machine.host_of.get(client, "pi")
        self._both(Rejected(self.now, host, client, self.steady.machine.round, "no", outcome))  # type: ignore[arg-type]

    @rule(client=st.integers(0, CLIENTS - 1), other=st.booleans())
    def fail(self, client: int, other: bool) -> None:
        host = "thief" if other else self.steady.machine.host_of.get(client, "pi")
        self._both(Rejected(self.now, host, client, self.steady.machine.round, "no samples", failed=True))

    @rule(client=st.integers(0, CLIENTS - 1))
    def decline(self, client: int) -> None:
        host = self.steady.machine.host_of.get(client, "pi")
        self.declined.add(client)
        self._both(Rejected(self.now, host, client, self.steady.machine.round, "used up", declined=True))

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self._both(Ticked(self.now))

    @rule(pauses=st.booleans())
    def pause_or_continue(self, pauses: bool) -> None:
        """The open exchange stays as it is, and while the run is paused no round opens."""
        machine, before = self.steady.machine, self.steady.machine.exchange
        self._both(Paused(self.now) if pauses else Continued(self.now))
        assert machine.paused == pauses
        assert machine.exchange is before or (before is None and not pauses)

    @precondition(lambda self: self.steady.machine.exchange is not None)
    @rule()
    def lose_a_reply(self) -> None:
        """Start the round again, because a reply on disk is damaged; the recovered machine never saw the replies."""
        before = self.steady.machine.exchange
        assert before is not None
        self.restarts += 1
        event = self.steady.machine.restart_event(self.now, "damaged")
        self._both(event)
        after = self.steady.machine.exchange
        assert after is not None
        assert (after.number, after.replies) == (0, {})
        if before.number == 0:
            assert set(after.tasks) == set(before.tasks) or event.declined  # without those, others may be drawn
            assert not set(after.tasks) & set(event.declined)
            common = after.tasks.keys() & before.tasks.keys()
            assert all(same_task(after.tasks[client], before.tasks[client]) for client in common)

    @precondition(lambda self: self.steady.machine.exchange is not None)
    @rule(data=st.data())
    def spoil_a_sum(self, data: st.DataObject) -> None:
        """Start the round again without clients that spoiled a masked sum; if others are too few, it waits for more."""
        machine = self.steady.machine
        assert machine.exchange is not None
        guilty = data.draw(st.sets(st.sampled_from(sorted(machine.exchange.tasks)), min_size=1))
        event = machine.restart_event(self.now, "spoiled", guilty)
        if not machine.policy.can_lose(event.declined):
            return
        self.restarts += 1
        self.declined |= guilty
        self._both(event)
        assert guilty <= set(event.declined)
        if machine.exchange is None:
            others = event.fleet.keys() - set(event.declined)
            assert len(others) < max(1, machine.policy.least(len(others)))
        else:
            assert (machine.exchange.number, machine.exchange.replies) == (0, {})
            assert not guilty & set(machine.exchange.tasks)

    @rule()
    def crash(self) -> None:
        self.shaken.crash()

    @rule()
    def crash_at_the_next_event(self) -> None:
        """After it is in the journal and before anything is done about it."""
        self.dies = True

    @invariant()
    def both_are_the_same(self) -> None:
        assert view(self.shaken) == view(self.steady)
        assert self.shaken.states.keys() == self.steady.states.keys()
        for number, state in self.steady.states.items():
            other = self.shaken.states[number]
            assert same_bits(state.arrays, other.arrays)
            assert same_bits(state.extra, other.extra)

    @invariant()
    def a_reply_counts_once(self) -> None:
        """Accepted more often than once only when its round was begun again."""
        accepted: Counter[Key] = Counter(
            (r.client, r.round, r.exchange) for r in self.steady.receipts if r.outcome == "accepted"
        )
        if self.steady.policy.shortfall == "wait" and not self.restarts and not self.declined:
            assert all(count == 1 for count in accepted.values())
        for replies in self.steady.algorithm.seen:
            assert replies
            assert list(replies) == sorted(replies)
            said = {client: round(float(reply.arrays["w"][0]) * 3) % 10 for client, reply in replies.items()}
            assert said == {client: client for client in replies}

    @invariant()
    def rounds_go_forward_and_close_with_a_quorum(self) -> None:
        machine, policy = self.steady.machine, self.steady.policy
        assert machine.round >= self.highest
        self.highest = machine.round
        enough = max(1, policy.quorum - len(self.declined))
        assert all(int(s.extra["count"][0]) >= enough for s in self.steady.states.values())
        assert sorted(self.steady.states) == list(range(1, machine.done + 1))

    @invariant()
    def it_waits_for_failed_clients_only_below_the_quorum(self) -> None:
        """Unless the policy waits for them until the deadline."""
        policy, exchange = self.steady.machine.policy, self.steady.machine.exchange
        if policy.skips_failed and exchange is not None and exchange.replies:
            hopeful = set(exchange.missing) - exchange.failed
            assert hopeful or len(exchange.replies) < policy.least(exchange.able)
            assert exchange.failed <= set(exchange.missing)

    @invariant()
    def every_claimed_client_has_one_host(self) -> None:
        machine = self.steady.machine
        assert set(machine.host_of) == {client for agent in machine.agents.values() for client in agent.clients}
        assert all(client in machine.agents[host].clients for client, host in machine.host_of.items())

    @invariant()
    def it_finishes_once(self) -> None:
        for book in (self.steady, self.shaken):
            assert book.finished == int(book.machine.finished)
            assert book.machine.finished == (book.machine.done == book.machine.policy.rounds)
            assert book.machine.done == book.policy.rounds or not book.machine.finished or len(self.declined) == CLIENTS

    @invariant()
    def it_never_wakes_for_nothing(self) -> None:
        """After a tick at its own wake-up time it does not want another one at once."""
        wake = self.steady.machine.wake_at
        if wake is not None and wake <= self.now:
            self._both(Ticked(self.now))
            wake = self.steady.machine.wake_at
            assert wake is None or wake > self.now


class TwoExchanges(Federation):
    """The same with two exchanges a round."""

    two = True


PROFILE = settings(suppress_health_check=[HealthCheck.too_slow])
TestOneExchange = Federation.TestCase
TestOneExchange.settings = PROFILE
TestTwoExchanges = TwoExchanges.TestCase
TestTwoExchanges.settings = PROFILE
