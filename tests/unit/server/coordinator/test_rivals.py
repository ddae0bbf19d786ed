"""Several coordinators in one federation: whatever the order of their messages, the one that started first stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.errors import FederationInUseError
from fedquilt_common.wire.messages import CoordinatorPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Incoming, MqttMessage
from fedquilt_server.coordinator import rivals as module
from fedquilt_server.coordinator.rivals import ANSWER_SECONDS, Rivals

TOPICS = Topics("lab")


class Candidate:
    """A coordinator that does nothing but handle its rivals; ``skew`` is the error of its clock in seconds."""

    def __init__(self, world: World, run: str, epoch: int, skew: float) -> None:
        self.world, self.run, self.skew = world, run, skew
        self.inbox: list[MqttMessage] = []
        self.announced = 0
        self.left = False
        will = CoordinatorPresence(online=False, epoch=epoch, run=run).encode()
        self.farewell = TOPICS.coordinator, will
        self.transport = MemoryTransport(world.broker, f"coordinator-{run}", self.deliver)
        self.rivals = Rivals(self.transport, TOPICS, run, epoch, self.announce)

    def deliver(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            self.inbox.append(incoming)

    def announce(self) -> None:
        self.announced += 1

    def connect(self) -> None:
        self.transport.connect()
        self.act(self.rivals.connect)

    def handle(self) -> bool:
        """Handle one message, or the time; returns whether there was a message."""
        waiting = bool(self.inbox) and not self.left
        if waiting:
            message = self.inbox.pop(0)
            message.ack()
            self.act(lambda: self.rivals.take(message))
        if not self.left:
            self.act(self.rivals.advance)
        return waiting

    def act(self, work: Callable[[], object]) -> None:
        self.world.skew = self.skew
        try:
            work()
        except FederationInUseError:
            self.leave()

    def leave(self) -> None:
        self.left = True
        self.transport.close(self.farewell if self.rivals.settled else None, end_session=True)


class World:
    """A broker, a time that the test sets, and coordinators."""

    def __init__(self) -> None:
        self.now, self.skew = 10_000.0, 0.0
        self.broker = MemoryBroker()
        self.candidates: list[Candidate] = []

    def start(self, run: str, *, epoch: int = 1, skew: float = 0.0) -> Candidate:
        self.candidates.append(Candidate(self, run, epoch, skew))
        self.candidates[-1].connect()
        return self.candidates[-1]

    def settle(self, seconds: float = 0.0) -> None:
        """Handle all messages, then let time pass and handle what that causes."""
        while any(candidate.handle() for candidate in self.candidates):
            pass
        if seconds:
            self.now += seconds
            self.settle()

    @property
    def staying(self) -> list[str]:
        return [candidate.run for candidate in self.candidates if not candidate.left]

    @property
    def retained(self) -> CoordinatorPresence:
        return CoordinatorPresence.model_validate_json(self.broker.retained[TOPICS.coordinator][0])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(module, "clock", SimpleNamespace(now=lambda: made.now + made.skew))
    return made


def test_a_coordinator_alone_settles_without_a_wait(world: World) -> None:
    world.start("one")
    world.settle()
    assert (world.retained.run, world.retained.started) == ("one", 10_000)


@pytest.mark.parametrize("skew", [-5000.0, 0.0, 5000.0])
@pytest.mark.parametrize("run", ["a", "z"])
def test_a_second_one_leaves_whatever_its_name_and_clock_and_however_often_it_starts(
    world: World, run: str, skew: float
) -> None:
    first = world.start("m")
    world.settle()
    for epoch in (1, 2, 3):
        world.now += 100
        world.start(run, epoch=epoch, skew=skew)
        world.settle(ANSWER_SECONDS)
        assert world.staying == ["m"]
    assert (world.retained.run, world.retained.online, first.announced) == ("m", True, 0)


@pytest.mark.parametrize(("run", "skew"), list(itertools.product(["a", "z"], [-5000.0, 5000.0])))
def test_a_first_one_that_answers_late_stays_all_the_same(world: World, run: str, skew: float) -> None:
    """It evaluates a round, so the second one stops waiting and works for a while."""
    first = world.start("m")
    world.settle()
    second = world.start(run, skew=skew)
    world.now += ANSWER_SECONDS
    while second.handle():
        pass
    assert second.rivals.settled
    world.settle()
    assert world.staying == ["m"]
    assert (world.retained.run, world.retained.online, first.announced) == ("m", True, 1)


def test_the_presence_of_a_dead_one_delays_but_does_not_prevent_a_start(world: World) -> None:
    dead = world.start("dead", skew=5000)
    world.settle()
    dead.transport.break_off()
    world.candidates.clear()
    world.start("new")
    world.settle()
    assert not world.candidates[0].rivals.settled
    world.settle(ANSWER_SECONDS)
    assert world.candidates[0].rivals.settled
    world.now += 3600
    world.start("dead", epoch=2)  # it is resumed hours later
    world.settle(ANSWER_SECONDS)
    assert world.staying == ["new"]


def test_the_farewell_of_the_other_one_ends_the_wait(world: World) -> None:
    other = world.start("other")
    world.settle()
    new = world.start("new")
    other.leave()
    world.settle()
    assert (world.staying, new.rivals.settled, new.announced) == (["new"], True, 1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_several_that_start_together_one_stays(world: World, order: tuple[int, ...]) -> None:
    started = [world.start(run) for run in ("a", "b", "c")]
    for _ in range(20):
        for position in order:
            started[position].handle()
    world.settle(ANSWER_SECONDS)
    assert len(world.staying) == 1
    assert (world.retained.run, world.retained.online) == (world.staying[0], True)


def test_two_whose_broker_has_lost_everything_agree(world: World) -> None:
    """Each one works at its own broker; then both reach the same one."""
    earlier = world.start("z")
    world.settle()
    earlier.transport.break_off()
    world.broker.retained.clear()
    world.now += 100
    later = world.start("a")
    world.settle()
    earlier.connect()
    world.settle()
    assert (world.staying, later.left, world.retained.run) == (["z"], True, "z")


def test_messages_of_the_session_are_history(world: World) -> None:
    """While this coordinator was away after a crash, another one came and left: its messages are still queued."""
    crashed = world.start("one")
    world.settle()
    crashed.transport.break_off()
    world.candidates.clear()
    other = world.start("other")
    world.settle(ANSWER_SECONDS)
    other.leave()
    world.now += 100
    one = world.start("one", epoch=2)
    assert [message.retained for message in one.inbox] == [False] * 3 + [True, False]
    world.settle()
    assert (world.staying, one.announced) == (["one"], 0)


def test_a_copy_of_the_run_that_started_later_ends_the_first_one(world: World) -> None:
    """Both have one session at the broker, so each connection ends that of the other."""
    first = world.start("m", epoch=3)
    world.settle()
    copy = world.start("m", epoch=4)
    world.settle(ANSWER_SECONDS)
    first.connect()
    world.settle()
    assert (first.left, copy.left) == (True, False)
    copy.connect()
    world.settle()
    assert (world.retained.epoch, world.retained.online, copy.left) == (4, True, False)


def test_an_older_copy_of_a_run_works_although_its_later_start_was_killed(world: World) -> None:
    """The broker has kept the presence of that start."""
    late = world.start("m", epoch=9)
    world.settle()
    late.left = True
    older = world.start("m", epoch=2)
    world.settle(ANSWER_SECONDS)
    assert (world.retained.epoch, older.left) == (2, False)
