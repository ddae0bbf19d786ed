"""Exchanges that do not wait for all replies (``Ask``): whose replies count, when, and after which restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from tests.unit.server.round.test_machine import WAIT, Driver, kinds, labs, load, outcome

from fedquilt_common.algorithm_api import Ask, Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_server.round.events import Rejected, Resumed, Send, Stop, Ticked
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy

POLICY = Policy(rounds=4, clients=4, quorum=1, deadline=60.0)


@dataclass(frozen=True)
class FirstTwo(FedAvg):
    """Asks the clients that do not work, and takes the first two replies; the model lists who answered what."""

    every: int = 99
    """Each round with this number as a divisor waits for all of its own tasks."""

    def round(self, state: State, ctx: ServerContext) -> Round:
        free = {client: Task("train", state.arrays) for client in sorted(ctx.fleet.keys() - ctx.working.keys())}
        if ctx.round % self.every == 0:
            free = {client: Task("train", state.arrays) for client in sorted(ctx.fleet)}
        replies = yield free if ctx.round % self.every == 0 else Ask(free, until=2)
        report = {str(client): reply.asked for client, reply in replies.items()}
        number = state.arrays["w"] + sum(float(reply.arrays["w"][0]) for reply in replies.values())
        return State({"w": number.astype(np.float32)}, report=report)


def started(every: int = 99, policy: Policy = POLICY) -> Driver:
    driver = Driver(policy, FirstTwo(every))
    driver.join(0, 0, 1, 2, 3)
    return driver


def open_tasks(driver: Driver) -> tuple[list[ClientId], Mapping[ClientId, ExchangeId]]:
    exchange = driver.machine.exchange
    assert exchange is not None
    return list(exchange.tasks), exchange.earlier


def test_the_first_replies_close_it_and_the_others_go_on() -> None:
    driver = started()
    driver.reply(1, 3)
    commands = driver.reply(2, 1)
    assert kinds(commands) == ["Receipt", "Checkpoint", "Send"]  # no Stop: nobody is left out
    assert open_tasks(driver) == ([1, 3], {0: (1, 0), 2: (1, 0)})
    assert driver.checkpoints[0].tally.missing == {}
    assert driver.machine.working == {0: (1, 0), 2: (1, 0)}
    send = commands[-1]
    assert isinstance(send, Send)
    assert (send.until, send.earlier) == (2, {0: (1, 0), 2: (1, 0)})


def test_a_later_reply_counts_once_and_says_what_it_answers() -> None:
    driver = started()
    driver.reply(1, 0)
    driver.reply(2, 1)
    assert outcome(driver.reply(3, 2, round=1)) == ("accepted", "")
    assert outcome(driver.reply(4, 2, round=1))[0] == "duplicate"
    driver.reply(5, 0, round=2)
    assert driver.checkpoints[1].state.report == {"0": (2, 0), "2": (1, 0)}
    assert (driver.checkpoints[1].tally.replies, sorted(driver.checkpoints[1].tally.ages)) == (2, [0, 1])
    assert outcome(driver.reply(6, 2, round=1))[0] == "duplicate"


def test_a_reply_to_a_task_that_ended_is_late() -> None:
    driver = started(every=2)
    driver.reply(1, 0)
    driver.reply(2, 1)
    assert open_tasks(driver) == ([0, 1, 2, 3], {})  # round 2 asks all again, and ends what went on
    assert outcome(driver.reply(3, 2, round=1))[0] == "late"
    assert driver.machine.exchange is not None
    assert driver.machine.exchange.missing == [0, 1, 2, 3]


def test_the_deadline_takes_a_quorum_of_the_first_replies() -> None:
    driver = started()
    driver.reply(1, 2)
    commands = driver.do(Ticked(60))
    assert kinds(commands) == ["Checkpoint", "Send"]
    assert driver.machine.working.keys() == {0, 1, 3}


def test_fewer_clients_than_until_are_enough_if_no_other_works() -> None:
    driver = Driver(Policy(rounds=2, clients=1, quorum=1, deadline=60.0), FirstTwo())
    driver.join(0, 0)
    driver.reply(1, 0)
    assert driver.machine.done == 1


def test_a_client_that_declines_leaves_its_task() -> None:
    driver = started()
    driver.reply(1, 0)
    driver.reply(2, 1)
    driver.do(Rejected(3, "pi", 2, 1, "no budget", failed=True, declined=True))
    assert driver.machine.exchange is not None
    assert driver.machine.exchange.missing == [0, 1, 3]
    driver.reply(4, 0, round=2)
    driver.reply(5, 1, round=2)
    assert driver.machine.working.keys() == {3}


def test_a_client_that_failed_leaves_its_task_when_the_exchange_closes() -> None:
    driver = Driver(POLICY, FirstTwo())
    driver.join(0, 0, 1, 2)
    driver.join(0, 3, agent="restarts")
    for agent, client in (("pi", 2), ("restarts", 3)):
        driver.do(Rejected(1, agent, client, 1, "no data set", failed=True))
    driver.join(2, 3, agent="restarts", boot=2)  # it tries again
    driver.reply(3, 0)
    driver.reply(4, 1)
    assert driver.machine.working == {3: (1, 0)}
    assert open_tasks(driver) == ([0, 1, 2], {3: (1, 0)})
    assert outcome(driver.reply(5, 2, round=1))[0] == "late"
    assert outcome(driver.reply(6, 2, round=2)) == ("accepted", "")


def restored(driver: Driver) -> Machine:
    last = driver.checkpoints[-1]
    machine = Machine(driver.algorithm, driver.policy, last.state, labs(9), load, last.round, validates=True)
    machine.restore(last.snapshot, last.at)
    return machine


def test_a_restart_forgets_nothing_of_tasks_that_go_on() -> None:
    driver = started()
    driver.reply(1, 0)
    driver.reply(2, 1)
    driver.reply(3, 2, round=1)
    driver.machine = restored(driver)
    assert outcome(driver.reply(3, 2, round=1)) == ("accepted", "")  # the journal has it again
    (send,) = driver.do(Resumed(9))
    assert isinstance(send, Send)
    assert send.earlier == {2: (1, 0), 3: (1, 0)}
    driver.reply(10, 3, round=1)
    assert driver.checkpoints[-1].state.report == {"2": (1, 0), "3": (1, 0)}


def test_a_round_that_starts_again_takes_later_replies_again() -> None:
    driver = started()
    driver.reply(1, 0)
    driver.reply(2, 1)
    driver.reply(3, 2, round=1)
    commands = driver.do(driver.machine.restart_event(4, "damaged"))
    assert kinds(commands) == ["Send"]
    assert open_tasks(driver) == ([0, 1], {2: (1, 0), 3: (1, 0)})
    assert outcome(driver.reply(5, 2, round=1)) == ("accepted", "")
    driver.reply(6, 3, round=1)
    assert driver.checkpoints[-1].tally.replies == 2
    assert driver.checkpoints[-1].tally.discarded == {}


def test_while_no_exchange_is_open_a_later_reply_waits() -> None:
    driver = started()
    driver.reply(1, 0)
    driver.machine.paused = True
    driver.reply(2, 1)
    assert outcome(driver.reply(3, 2, round=1))[0] == "rejected"  # not late: the board offers it again


def test_an_exchange_without_until_stops_those_that_are_missing() -> None:
    driver = Driver(WAIT, FirstTwo(every=1))
    driver.join(0, 0, 1, 2)
    driver.reply(1, 0)
    driver.reply(2, 1)
    stops = [command for command in driver.do(Ticked(60)) if isinstance(command, Stop)]
    assert [stop.clients for stop in stops] == [(2,)]


@dataclass(frozen=True)
class OnlyWaits(FirstTwo):
    """Asks in the first round only; later ones wait for what goes on."""

    def round(self, state: State, ctx: ServerContext) -> Round:
        asked = {client: Task("train", state.arrays) for client in sorted(ctx.fleet)} if ctx.round == 1 else {}
        replies = yield Ask(asked, until=2)
        return State(state.arrays, report={"replies": sorted(replies)})


def test_an_ask_without_tasks_waits_for_earlier_ones_and_for_nobody_if_there_are_none() -> None:
    driver = Driver(POLICY, OnlyWaits())
    driver.join(0, 0, 1, 2, 3)
    for client in range(4):
        driver.reply(1 + client, client)
    reports = [checkpoint.state.report["replies"] for checkpoint in driver.checkpoints]
    assert reports == [[0, 1], [2, 3], [], []]
    assert driver.machine.finished


def test_an_ask_needs_at_least_one_reply() -> None:
    with pytest.raises(ValueError, match="until = 0"):
        Ask({0: Task("train")}, until=0)
