"""Clients that decline because their privacy budget is used up: rounds go on without them."""

from __future__ import annotations

from tests.unit.server.round.test_machine import Driver, asked, kinds, outcome

from fedquilt_common.types import ClientId
from fedquilt_server.round.events import Command, Finish, Rejected
from fedquilt_server.round.policy import NO_BUDGET, Policy
from fedquilt_server.round.snapshots import MachineSnapshot

ALL = Policy(rounds=3, clients=3, quorum=3, deadline=None)
PATIENT = Policy(rounds=3, clients=4, quorum=3, deadline=60.0)


def decline(driver: Driver, at: float, client: ClientId, agent: str = "pi") -> list[Command]:
    return driver.do(Rejected(at, agent, client, driver.machine.round, "used up", failed=True, declined=True))


def start(policy: Policy, per_round: int | None = None) -> Driver:
    driver = Driver(policy, per_round=per_round)
    driver.join(0, *range(policy.clients))
    return driver


def test_a_round_goes_on_without_a_client_that_declines() -> None:
    driver = start(ALL)
    driver.reply(1, 0, value=1.0)
    driver.reply(2, 1, value=3.0)
    assert driver.machine.awaited == [2]
    assert kinds(decline(driver, 3, 2)) == ["Checkpoint", "Send"]  # nobody is stopped: it has stopped itself
    assert driver.value == 2.0
    assert asked(driver) == [0, 1]


def test_it_may_decline_before_the_others_reply() -> None:
    driver = start(ALL)
    assert decline(driver, 1, 2) == []
    assert driver.machine.awaited == [0, 1]
    driver.reply(2, 0)
    assert "Checkpoint" in kinds(driver.reply(3, 1))


def test_a_quorum_is_of_those_that_have_not_declined() -> None:
    driver = start(PATIENT)
    decline(driver, 1, 3)
    decline(driver, 2, 2)
    driver.reply(3, 0)
    assert "Checkpoint" in kinds(driver.reply(4, 1))
    assert asked(driver) == [0, 1]


def test_others_are_asked_if_all_that_were_asked_decline() -> None:
    driver = start(ALL, per_round=1)
    (first,) = asked(driver)
    assert kinds(decline(driver, 1, first)) == ["Send"]
    (second,) = asked(driver)
    assert second != first
    assert driver.machine.round == 1


def test_the_run_waits_if_the_others_are_not_connected() -> None:
    driver = Driver(Policy(rounds=3, clients=3, quorum=1, deadline=10.0), per_round=1)
    driver.join(0, 0)
    driver.join(11, 0)
    (first,) = asked(driver)
    assert decline(driver, 12, first) == []
    assert driver.machine.exchange is None
    assert kinds(driver.join(13, 1, agent="jetson")) == ["Send"]
    assert asked(driver) == [1]


def test_the_run_ends_when_every_client_has_declined() -> None:
    driver = start(ALL)
    for client in (0, 1):
        driver.reply(1, client)
    decline(driver, 2, 2)
    decline(driver, 3, 0)
    assert decline(driver, 4, 1) == [Finish(NO_BUDGET)]
    assert driver.machine.finished
    assert driver.machine.done == 1
    assert driver.join(5, 0, 1, 2) == []


def test_a_reply_after_all_counts() -> None:
    driver = start(ALL)
    decline(driver, 1, 2)
    assert outcome(driver.reply(2, 2)) == ("accepted", "")
    driver.reply(3, 0)
    assert "Checkpoint" in kinds(driver.reply(4, 1))


def test_who_has_declined_survives_a_checkpoint() -> None:
    driver = start(ALL)
    decline(driver, 1, 2)
    driver.reply(2, 0)
    driver.reply(3, 1)
    assert MachineSnapshot.decode(driver.checkpoints[0].snapshot).declined == {2}


def test_an_agent_that_starts_again_is_asked_again() -> None:
    driver = start(ALL)
    decline(driver, 1, 2)
    driver.join(2, 0, 1, 2, boot=2)
    driver.reply(3, 0)
    driver.reply(4, 1)
    assert asked(driver) == [0, 1, 2]
