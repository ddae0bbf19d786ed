"""Who hosts which client, two exchanges in a round, and taking a run up again: the machine alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Algorithm, Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import Arrays, ClientId, Profile
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    Continued,
    CutOff,
    Event,
    Finish,
    Joined,
    Left,
    Paused,
    Receipt,
    Replied,
    Resumed,
    Send,
    Stop,
    Ticked,
)
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy


def no_model() -> Any:
    """These machines need no tools."""
    return None


@dataclass(frozen=True)
class TwoSteps(FedAvg):
    """Asks for a number, then sends its mean to those who gave one: the shape of FedMD."""

    def round(self, state: State, lab: ServerContext) -> Round:
        scores = yield {client: Task("score", state.arrays) for client in lab.select()}
        consensus = mean(scores)
        digested = yield {client: Task("digest", consensus) for client in scores}
        return State(mean(digested, like=state.arrays), consensus)


def load(events: Sequence[Replied]) -> list[Arrays]:
    """A reply's digest stands for its one number."""
    return [{"w": np.array([float(event.digest)], np.float32)} for event in events]


def machine(policy: Policy, algorithm: Algorithm, per_round: int, done: int = 0, state: State | None = None) -> Machine:
    def lab(
        number: int,
        fleet: Mapping[ClientId, Profile],
        opened: float = 0.0,
        working: Mapping[int, tuple[int, int]] | None = None,
    ) -> ServerContext:
        return RoundContext(number, fleet, 7, 99, 99, per_round, no_model())

    return Machine(algorithm, policy, state or State({"w": np.zeros(1, np.float32)}), lab, load, done, validates=True)


def reply(at: float, client: int, round: int = 1, exchange: int = 0, value: float = 1.0, **more: float) -> Replied:
    return Replied(at, "pi", client, round, exchange, str(value), 1.0, more)


def play(subject: Machine, *events: Event) -> list[Command]:
    """Handle all of them, checkpoints included; the commands of the last."""
    commands: list[Command] = []
    for event in events:
        commands = subject.handle(event)
        for done in [c for c in commands if isinstance(c, Checkpoint)]:
            commands = [*commands, *subject.proceed(done.state, done.at)]
    return commands


def outcomes(commands: list[Command]) -> list[str]:
    return [c.outcome for c in commands if isinstance(c, Receipt)]


PLAIN = Policy(rounds=2, clients=2, quorum=2, deadline=60.0)


def test_a_will_of_an_earlier_boot_is_ignored() -> None:
    subject = machine(PLAIN, FedAvg(), 2)
    play(subject, Joined(0, "pi", 4, (0, 1)), Joined(1, "pi", 5, (0, 1)), Left(2, "pi", 4))
    assert subject.agents["pi"].boot == 5
    play(subject, Left(3, "pi", 5))
    assert subject.agents == {}
    assert play(subject, Left(4, "pi", 5), Left(5, "nobody", 1)) == []


def test_who_claimed_a_client_first_has_it_until_it_leaves() -> None:
    subject = machine(PLAIN, FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0,)), Joined(1, "thief", 1, (0, 1)))
    assert subject.host_of == {0: "pi", 1: "thief"}
    play(subject, Joined(2, "pi", 2, (0,)))
    assert subject.host_of[0] == "pi"
    play(subject, Left(3, "pi", 2))
    assert subject.host_of[0] == "thief"


def test_who_was_there_first_cannot_take_a_client_later() -> None:
    subject = machine(PLAIN, FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0,)), Joined(1, "jetson", 1, (1,)), Joined(2, "pi", 2, (0, 1)))
    assert subject.host_of == {0: "pi", 1: "jetson"}
    play(subject, Joined(3, "jetson", 2, ()))
    assert subject.host_of == {0: "pi", 1: "pi"}


def test_clients_that_the_experiment_does_not_have_are_not_asked() -> None:
    subject = machine(PLAIN, FedAvg(), 2)
    (send,) = play(subject, Joined(0, "pi", 1, (1, 0, 2, 99)))
    assert isinstance(send, Send)
    assert sorted(send.tasks) == [0, 1]


def test_who_is_awaited() -> None:
    subject = machine(PLAIN, FedAvg(), 2)
    assert subject.awaited == [0, 1]
    play(subject, Joined(0, "pi", 1, (1,)))
    assert subject.awaited == [0]
    play(subject, Joined(1, "jetson", 1, (0,)))
    assert subject.awaited == [0, 1]  # two tasks are out
    play(subject, reply(2, 1))
    assert subject.awaited == [0]
    play(subject, Left(3, "jetson", 1))
    assert subject.awaited == [0]
    play(subject, Joined(4, "jetson", 2, (0,)), reply(5, 0), reply(6, 0, round=2), reply(7, 1, round=2))
    assert (subject.finished, subject.awaited) == (True, [])


def test_two_exchanges_make_one_round() -> None:
    subject = machine(Policy(1, 3, 2, 60.0), TwoSteps(), 3)
    play(subject, Joined(0, "pi", 1, (0, 1, 2)), reply(1, 0, value=2), reply(2, 2, value=4))
    stop, send = play(subject, Ticked(60))
    assert stop == Stop(1, 0, (1,))
    assert isinstance(send, Send)
    assert (send.round, send.exchange, sorted(send.tasks), send.deadline) == (1, 1, [0, 2], 120)
    assert float(send.tasks[0].arrays["w"][0]) == 3.0
    assert outcomes(play(subject, reply(61, 1))) == ["late"]
    assert outcomes(play(subject, reply(62, 0))) == ["duplicate"]
    assert outcomes(play(subject, reply(63, 1, exchange=1))) == ["rejected"]
    commands = play(subject, reply(64, 0, exchange=1, value=10), reply(65, 2, exchange=1, value=20))
    assert [type(c) for c in commands] == [Receipt, Checkpoint, Finish]
    done = commands[1]
    assert isinstance(done, Checkpoint)
    assert (float(done.state.arrays["w"][0]), float(done.state.extra["w"][0])) == (15.0, 3.0)
    assert (done.tally.clients, done.tally.late, done.tally.duplicates, done.tally.rejected) == (2, 1, 1, 1)


def test_a_round_that_begins_again_takes_new_answers_from_all_who_are_asked_again() -> None:
    """The second exchange falls short: the first opens anew, and yesterday's answers must not pass for duplicates."""
    subject = machine(Policy(1, 3, 2, 60.0, "replace"), TwoSteps(), 2)
    play(subject, Joined(0, "pi", 1, (0, 1, 2)))
    assert subject.exchange is not None
    one, two = sorted(subject.exchange.tasks)
    (three,) = {0, 1, 2} - {one, two}
    play(subject, reply(1, one, value=1), reply(2, two, value=1), reply(3, one, exchange=1, value=1))
    (send,) = play(subject, Ticked(62))
    assert isinstance(send, Send)
    assert (send.round, send.exchange, sorted(send.tasks)) == (1, 0, sorted([one, three]))
    assert outcomes(play(subject, reply(63, one, value=5))) == ["accepted"]
    play(subject, reply(64, three, value=5), reply(65, one, exchange=1, value=7))
    commands = play(subject, reply(66, three, exchange=1, value=9))
    assert isinstance(commands[-1], Finish)
    assert float(subject.state.arrays["w"][0]) == 8.0


def test_training_time_is_that_of_the_busiest_agent_and_cannot_be_invented() -> None:
    subject = machine(replace(PLAIN, clients=3, quorum=3), FedAvg(), 3)
    play(subject, Joined(0, "pi", 1, (0, 1), workers=2), Joined(0, "jetson", 1, (2,)))
    absurd = Replied(20, "jetson", 2, 1, 0, "1.0", 1.0, {"train_seconds": 1e308})
    play(subject, reply(10, 0, train_seconds=8.0), reply(10, 1, train_seconds=-5.0))
    done = subject.handle(absurd)[1]
    assert isinstance(done, Checkpoint)
    assert done.tally.train_seconds == 20.0


@pytest.mark.parametrize(
    ("workers", "one", "other", "total"), [(1, 8.0, 2.0, 10.0), (2, 8.0, 2.0, 8.0), (2, 5.0, 5.0, 5.0)]
)
def test_workers_share_the_tasks_but_not_one_task(workers: int, one: float, other: float, total: float) -> None:
    subject = machine(PLAIN, FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0, 1), workers=workers), reply(10, 0, train_seconds=one))
    done = subject.handle(reply(11, 1, train_seconds=other))[1]
    assert isinstance(done, Checkpoint)
    assert done.tally.train_seconds == total


def test_a_round_that_begins_anew_keeps_its_time() -> None:
    """Its training counts, so the time in which that was done must count too."""
    policy = Policy(1, 3, 2, 60.0, "replace")
    subject = machine(policy, FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0, 1, 2)))
    assert subject.exchange is not None
    first, second = sorted(subject.exchange.tasks)
    play(subject, reply(50, first, train_seconds=45.0), Ticked(60))
    (third,) = {0, 1, 2} - {first, second}
    commands = [c for client in (first, third) for c in play(subject, reply(62, client))]
    (done,) = [c for c in commands if isinstance(c, Checkpoint)]
    assert (done.tally.opened_at, done.tally.train_seconds) == (0, 45.0)


def test_a_silent_client_is_asked_again_if_those_with_a_task_have_left() -> None:
    """It has no task, so it could never show a sign of life, and the run would wait forever."""
    subject = machine(Policy(1, 3, 2, 60.0, "replace"), FedAvg(), 2)
    play(subject, *(Joined(0, f"pi-{client}", 1, (client,)) for client in range(3)))
    assert subject.exchange is not None
    first, slow = sorted(subject.exchange.tasks)
    (gone,) = {0, 1, 2} - {first, slow}
    play(subject, reply(50, first), Ticked(60))
    assert subject.awaited == [gone]
    play(subject, Left(61, f"pi-{gone}", 1), Ticked(120))
    assert subject.awaited == [slow]
    assert any(isinstance(command, Checkpoint) for command in play(subject, reply(121, slow)))


def test_a_slow_client_with_a_task_keeps_it_while_the_others_are_silent() -> None:
    """It can still complete the quorum; replacing it by a client that was silent before would stop its training."""
    subject = machine(Policy(1, 3, 2, 60.0, "replace"), FedAvg(), 2)
    play(subject, *(Joined(0, f"pi-{client}", 1, (client,)) for client in range(3)))
    assert subject.exchange is not None
    first, silent = sorted(subject.exchange.tasks)
    (slow,) = {0, 1, 2} - {first, silent}
    assert play(subject, reply(50, first), Ticked(60), Ticked(120)) == []
    assert subject.awaited == [slow]
    assert subject.wake_at == 180


@pytest.mark.parametrize("algorithm", [FedAvg(), TwoSteps()])
def test_a_snapshot_goes_on_as_the_machine_did(algorithm: Algorithm) -> None:
    policy = Policy(3, 4, 1, 60.0, "replace")
    profile = Profile("pi-zero", 4, 1 << 29)
    first = machine(policy, algorithm, 2)
    play(first, Joined(0, "pi", 3, (0, 1), 2, profile), Joined(1, "jetson", 1, (2, 3)), Ticked(61))
    done: Checkpoint | None = None
    for exchange in range(2):
        for client in sorted(first.exchange.tasks) if first.exchange and not done else []:
            found = [c for c in first.handle(reply(70, client, 1, exchange, 5)) if isinstance(c, Checkpoint)]
            done = found[0] if found else done
    assert done is not None
    second = machine(policy, algorithm, 2, done=done.round, state=done.state)
    one, other = second.restore(done.snapshot, done.at), first.proceed(done.state, done.at)
    assert [type(c) for c in one] == [type(c) for c in other] == [Send]
    assert (one[0].round, sorted(one[0].tasks), one[0].deadline) == (  # type: ignore[union-attr]
        other[0].round, sorted(other[0].tasks), other[0].deadline,  # type: ignore[union-attr]
    )  # fmt: skip
    assert first.agents == second.agents
    assert second.agents["pi"].profile == profile
    assert first.snapshot() == second.snapshot()
    assert outcomes(play(second, reply(80, sorted(first.host_of)[0], 1))) == outcomes(
        play(first, reply(80, sorted(first.host_of)[0], 1))
    )


def test_a_snapshot_of_the_last_round_is_finished() -> None:
    first = machine(replace(PLAIN, rounds=1), FedAvg(), 2)
    first.handle(Joined(0, "pi", 1, (0, 1)))
    first.handle(reply(1, 0))
    done = first.handle(reply(2, 1))[1]
    assert isinstance(done, Checkpoint)
    second = machine(replace(PLAIN, rounds=1), FedAvg(), 2, done=1, state=done.state)
    assert [type(c) for c in second.restore(done.snapshot, done.at)] == [Finish]
    assert second.handle(Resumed(3)) == []


def test_an_open_exchange_is_sent_again_with_its_whole_time() -> None:
    policy = replace(PLAIN, deadline=60)
    subject = machine(policy, FedAvg(), 2)
    assert subject.handle(Resumed(0)) == []
    (send,) = play(subject, Joined(0, "pi", 1, (0, 1)))
    assert isinstance(send, Send)
    play(subject, reply(1, 0))
    assert subject.handle(Resumed(500)) == [replace(send, deadline=560)]
    assert play(subject, Ticked(501)) == []


def test_clients_that_are_waited_for_get_their_whole_time_again() -> None:
    subject = machine(replace(PLAIN, deadline=60, quorum=1), FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0,)))
    assert subject.wake_at == 60
    play(subject, Resumed(500))
    assert subject.wake_at == 560


@pytest.mark.parametrize(("at", "lost", "deadline"), [
    (100, 50, 650),  # later by what was lost
    (602, 4, 606),  # as long again, so that boards can connect
    (700, 101, 730),  # but not more than 30 s
    (100, 400, 700),  # never more than the whole deadline
])  # fmt: skip
def test_the_time_in_which_no_board_was_heard_does_not_count(at: float, lost: float, deadline: float) -> None:
    subject = machine(replace(PLAIN, deadline=600), FedAvg(), 2)
    (send,) = play(subject, Joined(0, "pi", 1, (0, 1)))
    assert isinstance(send, Send)
    play(subject, reply(1, 0))
    assert subject.handle(CutOff(at, lost)) == [replace(send, deadline=deadline)]
    assert play(subject, Ticked(deadline - 1)) == []


def test_the_wait_for_all_clients_goes_on_after_a_time_without_boards() -> None:
    subject = machine(replace(PLAIN, deadline=60, quorum=1), FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0,)))
    play(subject, CutOff(10, 5))
    assert subject.wake_at == 65


def test_a_paused_run_waits_its_whole_time_again_after_a_restart() -> None:
    subject = machine(replace(PLAIN, deadline=60, quorum=1), FedAvg(), 2)
    play(subject, Joined(0, "pi", 1, (0,)))
    play(subject, Paused(1))
    play(subject, Resumed(500))
    play(subject, Continued(501))
    assert subject.wake_at == 560


@given(lost=st.lists(st.tuples(st.floats(0.1, 40), st.floats(0.1, 100)), min_size=1, max_size=30))
def test_gaps_add_at_most_twice_their_length_to_a_deadline(lost: list[tuple[float, float]]) -> None:
    """However often the connection is lost, an exchange with a client that is gone closes."""
    at, deadline = 0.0, 60.0
    for connected, gap in lost:
        if at + connected >= deadline:
            break
        at += connected + gap
        later = CutOff(at, gap).postpone(deadline, 60.0)
        assert max(deadline, at) <= later <= min(deadline + 2 * gap + 1e-9, at + 60.0)
        deadline = later
