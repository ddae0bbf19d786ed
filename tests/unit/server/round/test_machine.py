"""When a run starts, when an exchange closes, what counts: the machine alone, without journal, clock or network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from fedquilt_common.algorithm_api import Algorithm, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.submodels.slices import Anatomy, Group, IndexSet, Slice
from fedquilt_common.types import Arrays, ClientId, Profile
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    Continued,
    Event,
    Joined,
    Left,
    Paused,
    Receipt,
    Rejected,
    Replied,
    Send,
    Stop,
    Ticked,
)
from fedquilt_server.round.exchange import same_task
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy
from fedquilt_server.round.ports import ContextFactory
from fedquilt_server.round.snapshots import MachineSnapshot


def no_model() -> Any:
    """These machines need no tools."""
    return None


def labs(per_round: int) -> ContextFactory:
    def make(
        number: int,
        fleet: Mapping[ClientId, Profile],
        opened: float = 0.0,
        working: Mapping[int, tuple[int, int]] | None = None,
    ) -> ServerContext:
        return RoundContext(number, fleet, 7, 99, 99, per_round, no_model(), working=working or {})

    return make


def load(events: Sequence[Replied]) -> list[Arrays]:
    """A reply's digest stands for its one number."""
    return [{"w": np.array([float(event.digest)], np.float32)} for event in events]


class Driver:
    """A machine, and a driver that carries out nothing but ``Checkpoint``."""

    def __init__(self, policy: Policy, algorithm: Algorithm | None = None, per_round: int | None = None) -> None:
        self.policy = policy
        start = State({"w": np.zeros(1, np.float32)})
        self.algorithm = algorithm or FedAvg()
        self.per_round = per_round or policy.clients
        self.machine = Machine(self.algorithm, policy, start, labs(self.per_round), load, validates=True)
        self.checkpoints: list[Checkpoint] = []

    def do(self, event: Event) -> list[Command]:
        """Handle, and proceed from every checkpoint; all commands that came."""
        foreseen, was_open = self.machine.would_close(event), self.machine.exchange is not None
        commands = self.machine.handle(event)
        came = set(kinds(commands))
        if isinstance(event, Replied):  # the driver stops an evaluation before the algorithm continues
            assert foreseen or not {"Checkpoint", "Send"} & came
        else:  # it shows that the coordinator averages
            assert foreseen or not (was_open and "Checkpoint" in came)
            assert not foreseen or came & {"Stop", "Checkpoint", "Send"}
        for command in commands:  # it grows meanwhile
            if isinstance(command, Checkpoint):
                self.checkpoints.append(command)
                commands += self.machine.proceed(command.state, command.at)
        return commands

    def join(self, at: float, *clients: int, agent: str = "pi", boot: int = 1) -> list[Command]:
        return self.do(Joined(at, agent, boot, clients))

    def reply(self, at: float, client: int, round: int = 1, exchange: int = 0, value: float = 1.0) -> list[Command]:
        host = self.machine.host_of.get(client, "pi")
        return self.do(Replied(at, host, client, round, exchange, str(value), 1.0))

    @property
    def value(self) -> float:
        return float(self.machine.state.arrays["w"][0])


def kinds(commands: Iterable[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def outcome(commands: Iterable[Command]) -> tuple[str, str]:
    (receipt,) = (c for c in commands if isinstance(c, Receipt))
    return receipt.outcome, receipt.reason


def asked(driver: Driver) -> list[int]:
    assert driver.machine.exchange is not None
    return sorted(driver.machine.exchange.tasks)


WAIT = Policy(rounds=2, clients=3, quorum=2, deadline=60.0)
REPLACE = Policy(rounds=2, clients=4, quorum=2, deadline=60.0, shortfall="replace")


def test_the_first_round_waits_for_every_client() -> None:
    driver = Driver(WAIT)
    assert driver.join(0, 0, 1) == []
    assert kinds(driver.join(5, 2, agent="jetson")) == ["Send"]
    assert asked(driver) == [0, 1, 2]
    assert driver.machine.wake_at == 65


def test_a_paused_run_finishes_its_round_and_opens_no_other_one() -> None:
    driver = Driver(WAIT)
    driver.do(Paused(0))
    assert driver.join(1, 0, 1, 2) == []
    assert driver.machine.wake_at is None  # no tick is due, or the journal would fill up
    assert kinds(driver.do(Continued(2))) == ["Send"]
    assert driver.do(Paused(3)) == []
    for client in range(3):
        driver.reply(4 + client, client)
    assert (driver.machine.done, driver.machine.exchange) == (1, None)
    assert MachineSnapshot.decode(driver.checkpoints[0].snapshot).paused
    assert kinds(driver.do(Continued(9))) == ["Send"]
    assert asked(driver) == [0, 1, 2]


def test_after_the_deadline_the_first_round_starts_with_a_quorum() -> None:
    driver = Driver(WAIT)
    driver.join(10, 0, 1)
    assert driver.machine.wake_at == 70
    assert driver.do(Ticked(69)) == []
    (send,) = driver.do(Ticked(70))
    assert isinstance(send, Send)
    assert (send.round, send.exchange, sorted(send.tasks), send.deadline) == (1, 0, [0, 1], 130)


def test_after_the_deadline_without_a_quorum_the_next_agent_starts_it_and_time_is_silent() -> None:
    """A wake-up time that stayed in the past would make the driver write one ``Ticked`` after the other."""
    driver = Driver(WAIT)
    driver.join(10, 0)
    assert driver.do(Ticked(70)) == []
    assert driver.machine.wake_at is None
    assert kinds(driver.join(500, 1, agent="jetson")) == ["Send"]


def test_an_exchange_closes_when_all_have_replied_and_the_run_ends_once() -> None:
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    assert kinds(driver.reply(1, 2, value=3)) == ["Receipt"]
    assert kinds(driver.reply(2, 0, value=1)) == ["Receipt"]
    assert kinds(driver.reply(3, 1, value=2)) == ["Receipt", "Checkpoint", "Send"]
    assert driver.value == 2.0
    for client in (0, 1):
        driver.reply(4, client, round=2, value=5)
    commands = driver.reply(5, 2, round=2, value=5)
    assert kinds(commands) == ["Receipt", "Checkpoint", "Finish"]
    assert driver.machine.finished
    assert driver.machine.wake_at is None
    assert driver.do(Ticked(1000)) == driver.join(1001, 0, boot=2) == []
    assert outcome(driver.reply(1002, 0, round=2)) == ("duplicate", "a reply of this client has been counted")
    assert outcome(driver.reply(1002, 0, round=3))[0] == "late"
    assert driver.value == 5.0


def test_the_deadline_closes_with_a_quorum_and_what_comes_later_is_late() -> None:
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    driver.reply(1, 0, value=1)
    driver.reply(2, 1, value=3)
    assert driver.do(Ticked(59)) == []
    stop, *rest = driver.do(Ticked(60))
    assert stop == Stop(1, 0, (2,))
    assert kinds(rest) == ["Checkpoint", "Send"]
    tally = driver.checkpoints[0].tally
    assert (driver.value, tally.clients, tally.asked, tally.late) == (2.0, 2, 3, 0)
    assert outcome(driver.reply(61, 2, value=100)) == ("late", "round 1, exchange 0 is closed")
    for client in range(3):
        driver.reply(62, client, round=2, value=4)
    assert (driver.value, driver.checkpoints[1].tally.late) == (4.0, 1)


def test_a_reply_after_the_deadline_closes_as_a_tick_would() -> None:
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    driver.reply(1, 0)
    assert "Checkpoint" in kinds(driver.reply(61, 1))


def test_without_a_quorum_it_waits_and_closes_with_the_reply_that_makes_one() -> None:
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    driver.reply(1, 0, value=1)
    assert driver.do(Ticked(60)) == []
    assert driver.machine.wake_at is None
    assert kinds(driver.reply(900, 2, value=3)) == ["Receipt", "Stop", "Checkpoint", "Send"]
    assert driver.value == 2.0


def test_a_shortfall_replaces_the_silent_and_keeps_answers_to_the_same_task() -> None:
    driver = Driver(REPLACE, per_round=3)
    driver.join(0, 0, 1, 2, 3)
    first = asked(driver)
    (other,) = set(range(4)) - set(first)
    driver.reply(1, first[0], value=1)
    (send,) = driver.do(Ticked(60))
    assert isinstance(send, Send)
    assert sorted(send.tasks) == sorted([first[0], other])
    assert driver.machine.exchange is not None
    assert set(driver.machine.exchange.replies) == {first[0]}
    assert outcome(driver.reply(61, first[0], value=9))[0] == "duplicate"
    assert "Checkpoint" in kinds(driver.reply(62, other, value=3))
    assert driver.value == 2.0
    tally = driver.checkpoints[0].tally
    assert (tally.clients, tally.replies, tally.discarded) == (2, 2, {})


def test_what_the_same_question_is() -> None:
    """Arrays are the same where they are the very same, or where there are none: labels are asked for without any."""
    arrays = {"x": np.zeros(2, np.float32)}
    assert same_task(Task("score", scalars={"seed": 1}), Task("score", scalars={"seed": 1}))
    assert same_task(Task("train", arrays), Task("train", arrays))
    assert not same_task(Task("train", arrays), Task("train", dict(arrays)))
    assert not same_task(Task("train", arrays), Task("train"))
    assert not same_task(Task("score", scalars={"seed": 1}), Task("score", scalars={"seed": 2}))
    assert not same_task(Task("score"), Task("digest"))
    assert not same_task(Task("score"), Task("score", labels=True))
    group = Anatomy((Group("layer", 4, 0),), {})
    first, second = (Slice(group, (IndexSet(4, ((start, start + 2),)),)) for start in (0, 2))
    assert same_task(Task("train", arrays, slice=first), Task("train", arrays, slice=Slice(group, first.kept)))
    assert not same_task(Task("train", arrays, slice=first), Task("train", arrays, slice=second))


def test_replacing_never_closes_below_the_quorum() -> None:
    """Four clients, three asked, quorum three; two fall silent: only two are left, so it waits."""
    driver = Driver(Policy(2, 4, 3, 60.0, "replace"), per_round=3)
    driver.join(0, 0, 1, 2, 3)
    first = asked(driver)
    driver.reply(1, first[0])
    assert driver.do(Ticked(60)) == []
    assert driver.machine.wake_at == 120
    driver.reply(61, first[1])
    assert "Checkpoint" in kinds(driver.reply(62, first[2]))
    assert driver.checkpoints[0].tally.clients == 3


def test_nobody_else_is_there_so_replacing_waits_for_another_deadline() -> None:
    driver = Driver(Policy(1, 2, 2, 60.0, "replace"))
    driver.join(0, 0, 1)
    driver.reply(1, 0)
    assert driver.do(Ticked(60)) == []
    assert driver.machine.wake_at == 120
    assert "Finish" in kinds(driver.reply(61, 1))


@pytest.mark.parametrize("sign", ["joins", "late", "rejected"])
def test_a_silent_client_is_asked_again_once_it_shows_a_sign_of_life(
    sign: Literal["joins", "late", "rejected"],
) -> None:
    driver = Driver(Policy(2, 3, 1, 60.0, "replace"), per_round=2)
    for client in range(3):
        driver.join(0, client, agent=f"pi-{client}")
    one, two = asked(driver)
    (other,) = {0, 1, 2} - {one, two}
    driver.do(Ticked(60))
    assert asked(driver) == [other]
    if sign == "joins":
        driver.join(61, one, agent=f"pi-{one}", boot=2)
    else:
        driver.do(Rejected(61, f"pi-{one}", one, 1, "was not asked", sign))
    driver.reply(62, other)
    assert asked(driver) == sorted([one, other])


def test_the_silent_are_asked_again_when_there_are_too_few_others() -> None:
    """Nobody else would ever make them speak, and the run would wait for ever."""
    driver = Driver(Policy(2, 3, 1, 60.0, "replace"), per_round=2)
    for client in range(3):
        driver.join(0, client, agent=f"pi-{client}")
    (other,) = {0, 1, 2} - set(asked(driver))
    driver.do(Ticked(60))
    driver.do(Left(61, f"pi-{other}", 1))
    driver.reply(62, other)
    assert driver.machine.round == 2
    assert set(asked(driver)) == {0, 1, 2} - {other}


def test_a_stranger_cannot_speak_for_a_silent_client() -> None:
    driver = Driver(Policy(2, 3, 1, 60.0, "replace"), per_round=2)
    driver.join(0, 0, 1, 2)
    silent = asked(driver)
    (other,) = {0, 1, 2} - set(silent)
    driver.do(Ticked(60))
    driver.do(Rejected(61, "stranger", silent[0], 1, "does not host it"))
    driver.reply(62, other)
    assert asked(driver) == [other]


def test_nothing_is_averaged_while_nobody_is_there() -> None:
    driver = Driver(Policy(2, 2, 1, 60.0))
    driver.join(0, 0, 1)
    driver.reply(1, 0, value=4)
    driver.do(Left(2, "pi", 1))
    assert kinds(driver.do(Ticked(60))) == ["Stop", "Checkpoint"]
    assert (driver.machine.exchange, driver.machine.wake_at) == (None, None)
    assert driver.do(Ticked(600)) == []
    assert outcome(driver.reply(601, 1, round=1))[0] == "late"
    assert outcome(driver.reply(602, 1, round=2)) == ("rejected", "round 2, exchange 0 is not open")
    assert kinds(driver.join(603, 0, 1, boot=2)) == ["Send"]
    assert driver.value == 4.0


ANSWERS: dict[str, tuple[Callable[[Driver], list[Command]], str, str]] = {
    "twice": (lambda d: d.reply(9, 0, round=2), "duplicate", "has been counted"),
    "twice, of the round before": (lambda d: d.reply(9, 0, round=1), "duplicate", "has been counted"),
    "a future round": (lambda d: d.reply(9, 1, round=3), "rejected", "round 3, exchange 0 is not open"),
    "a future exchange": (lambda d: d.reply(9, 1, round=2, exchange=1), "rejected", "exchange 1 is not open"),
    "a client that is not asked": (lambda d: d.reply(9, 77, round=2), "rejected", "client 77 was not asked"),
    "a client that was away": (lambda d: d.reply(9, 2, round=1), "late", "round 1, exchange 0 is closed"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_cannot_count_is_told_so_and_tallied(case: str) -> None:
    act, verdict, reason = ANSWERS[case]
    driver = Driver(Policy(3, 3, 2, 60.0))
    driver.join(0, 0, 1, 2)
    driver.reply(1, 0)
    driver.reply(2, 1)
    driver.do(Ticked(60))
    driver.reply(61, 0, round=2)
    said = outcome(act(driver))
    assert said[0] == verdict
    assert reason in said[1]
    driver.reply(62, 1, round=2)
    driver.reply(63, 2, round=2)
    tally = driver.checkpoints[1].tally
    counts = {"duplicate": tally.duplicates, "rejected": tally.rejected, "late": tally.late}
    assert counts == {**dict.fromkeys(counts, 0), verdict: 1}
    assert tally.clients == 3
