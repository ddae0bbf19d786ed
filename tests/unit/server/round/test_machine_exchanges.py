"""Rounds of several exchanges: which replies count, and after which one a client's memory is taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from tests.unit.server.round.test_machine import REPLACE, WAIT, Driver, asked, kinds, labs, load, outcome

from fedquilt_common.algorithm_api import Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId
from fedquilt_server.round.events import Command, Resumed, Send, Ticked
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy


@dataclass(frozen=True)
class TwoExchanges(FedAvg):
    """Trains, then asks something, of everybody or of those who have trained."""

    everybody: bool = True

    def round(self, state: State, lab: ServerContext) -> Round:
        replies = yield {client: Task("train", state.arrays) for client in lab.select()}
        state = self.merge(state, replies, lab)
        yield {client: Task("tell", state.arrays) for client in (lab.fleet if self.everybody else replies)}
        return state


def test_a_reply_is_discarded_when_the_round_starts_again_without_its_client() -> None:
    """Two of four reply to the first exchange, and one of them not to the second: other clients are asked."""
    driver = Driver(REPLACE, TwoExchanges(everybody=False), per_round=2)
    driver.join(0, 0, 1, 2, 3)
    first = asked(driver)
    for client in first:
        driver.reply(1, client, value=9)
    driver.do(Ticked(61))
    again = asked(driver)
    assert again != first
    for exchange, client in itertools.product((0, 1), again):
        driver.reply(62, client, exchange=exchange, value=3)
    tally = driver.checkpoints[0].tally
    assert (driver.value, tally.clients, tally.replies) == (3.0, 2, 4)
    assert tally.discarded == {0: sorted(set(first) - set(again))}


def since(commands: Iterable[Command]) -> dict[ClientId, tuple[int, int]]:
    (send,) = (command for command in commands if isinstance(command, Send))
    return dict(send.since)


def test_each_client_is_told_after_which_reply_its_memory_is_taken() -> None:
    """A late reply counts in no round, so what it has trained is forgotten."""
    driver = Driver(Policy(rounds=9, clients=3, quorum=2, deadline=60.0))
    assert since(driver.join(0, 0, 1, 2)) == {}
    for client in (0, 1):
        driver.reply(1, client)
    assert since(driver.do(Ticked(60))) == {0: (1, 0), 1: (1, 0)}
    assert outcome(driver.reply(61, 2)) == ("late", "round 1, exchange 0 is closed")
    for client in (1, 2):
        driver.reply(62, client, round=2)
    assert since(driver.do(Ticked(120))) == {0: (1, 0), 1: (2, 0), 2: (2, 0)}
    (again,) = driver.do(Resumed(130))
    assert since([again]) == {0: (1, 0), 1: (2, 0), 2: (2, 0)}


def test_what_counted_survives_a_restart() -> None:
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    for client in (0, 1, 2):
        driver.reply(1, client)
    last = driver.checkpoints[-1]
    machine = Machine(driver.algorithm, WAIT, last.state, labs(3), load, done=1, validates=True)
    (send,) = machine.restore(last.snapshot, last.at)
    assert since([send]) == dict.fromkeys((0, 1, 2), (1, 0))


def test_within_a_round_memory_follows_the_exchanges_and_a_round_counts_its_first() -> None:
    driver = Driver(Policy(rounds=2, clients=3, quorum=2), TwoExchanges(), per_round=2)
    driver.join(0, 0, 1, 2)
    trained = asked(driver)
    driver.reply(1, trained[0])
    assert since(driver.reply(1, trained[1])) == dict.fromkeys(trained, (1, 0))
    commands = [command for client in (0, 1, 2) for command in driver.reply(2, client, exchange=1)]
    assert since(commands).keys() == set(asked(driver))
    assert set(since(commands).values()) == {(1, 1)}
    tally = driver.checkpoints[0].tally
    assert (tally.clients, tally.asked, tally.replies) == (2, 2, 5)


def test_a_round_that_begins_again_begins_with_the_memory_of_before() -> None:
    driver = Driver(Policy(2, 4, 2, 60.0, "replace"), TwoExchanges(everybody=False), per_round=2)
    driver.join(0, 0, 1, 2, 3)
    first = asked(driver)
    for client in first:
        commands = driver.reply(1, client)
    assert since(commands) == dict.fromkeys(first, (1, 0))
    (again,) = driver.do(Ticked(61))  # nobody has told anything: others train
    assert isinstance(again, Send)
    assert (again.round, again.exchange, dict(again.since)) == (1, 0, {})
    assert not set(first) & set(asked(driver))
    for client in asked(driver):
        commands = driver.reply(62, client)
    assert since(commands) == dict.fromkeys(asked(driver), (1, 0))


@dataclass(frozen=True)
class SometimesNobody(FedAvg):
    """Asks clients in even rounds only; the others add 10 on the server, with or without a ``yield``."""

    empty: bool = True

    def round(self, state: State, lab: ServerContext) -> Round:
        if lab.round % 2:
            assert not self.empty or (yield {}) == {}
            return State({"w": state.arrays["w"] + 10})
        assert (yield {}) == {}
        replies = yield {client: Task("train", state.arrays) for client in lab.select()}
        assert (yield {}) == {}
        return self.merge(state, replies, lab)


@pytest.mark.parametrize("empty", [True, False], ids=["an empty mapping", "no yield"])
def test_a_round_that_asks_nobody_sends_nothing_and_waits_for_nothing(empty: bool) -> None:
    driver = Driver(Policy(rounds=4, clients=2, quorum=2), SometimesNobody(empty))
    opened = driver.join(0, 0, 1)
    assert kinds(opened) == ["Checkpoint", "Send"]  # round 1 is over, round 2 asks
    assert (driver.value, driver.machine.round, asked(driver)) == (10.0, 2, [0, 1])
    driver.reply(1, 0, round=2, value=3)
    assert kinds(driver.reply(1, 1, round=2, value=5)) == ["Receipt", "Checkpoint", "Checkpoint", "Send"]
    assert [c.tally.asked for c in driver.checkpoints] == [0, 2, 0]
    assert (driver.value, driver.machine.round) == (14.0, 4)


def test_a_crash_between_rounds_of_which_one_asks_nobody_changes_nothing() -> None:
    driver = Driver(Policy(rounds=4, clients=2, quorum=2), SometimesNobody())
    driver.join(0, 0, 1)
    for client in (0, 1):
        driver.reply(1, client, round=2, value=3)
    asked_nobody, after = driver.checkpoints[1:]
    again = Machine(driver.algorithm, driver.policy, asked_nobody.state, labs(2), load, done=2, validates=True)
    (checkpoint,) = again.restore(asked_nobody.snapshot, asked_nobody.at)
    assert checkpoint == after
