"""Clients that fail: with ``skips_failed``, an exchange does not wait for them until its deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.server.round.test_machine import Driver, asked, kinds
from tests.unit.server.round.test_machine_ask import FirstTwo

from fedquilt_common.types import ClientId
from fedquilt_server.round.events import Command, Left, Rejected, Ticked
from fedquilt_server.round.policy import Policy

SKIP = Policy(rounds=3, clients=4, quorum=2, deadline=60.0, skips_failed=True)


def fail(driver: Driver, at: float, client: ClientId) -> list[Command]:
    event = Rejected(at, "pi", client, driver.machine.round, "no samples", failed=True)
    foreseen = driver.machine.would_close(event)
    commands = driver.do(event)
    assert foreseen == ("Checkpoint" in kinds(commands))
    return commands


def start(policy: Policy) -> Driver:
    driver = Driver(policy)
    driver.join(0, *range(policy.clients))
    return driver


@pytest.mark.parametrize("last", ["reply", "failure"])
def test_an_exchange_closes_once_only_failed_clients_are_missing(last: str) -> None:
    driver = start(SKIP)
    driver.reply(1, 0, value=1.0)
    fail(driver, 2, 3)
    if last == "reply":
        assert fail(driver, 3, 2) == fail(driver, 4, 2) == driver.join(4, 0, agent="other") == []
        commands = driver.reply(5, 1, value=3.0)
    else:
        driver.reply(3, 1, value=3.0)
        commands = fail(driver, 4, 2)
    assert kinds(commands)[-3:] == ["Stop", "Checkpoint", "Send"]
    assert driver.value == 2.0
    assert asked(driver) == [0, 1, 2, 3]  # a client that failed in one round is asked in the next


def test_it_waits_for_the_deadline_where_the_policy_says_so() -> None:
    driver = start(replace(SKIP, skips_failed=False))
    for client in (0, 1, 2):
        driver.reply(1, client)
    assert fail(driver, 2, 3) == []
    assert "Checkpoint" in kinds(driver.do(Ticked(60)))


def test_it_never_closes_below_the_quorum_and_never_without_a_reply() -> None:
    driver = start(SKIP)
    for client in (0, 1, 2, 3):
        fail(driver, 1, client)
    driver.reply(2, 0)
    assert driver.machine.done == 0
    assert "Checkpoint" in kinds(driver.reply(3, 1))


def test_it_waits_again_for_a_client_whose_agent_has_restarted() -> None:
    driver = start(SKIP)
    for client in (0, 1, 2):
        fail(driver, 1, client)
    driver.join(2, 0, 1, 2, 3, boot=2)
    driver.reply(3, 0)
    driver.reply(4, 1)
    assert driver.machine.awaited == [2, 3]
    driver.reply(5, 3)
    assert "Checkpoint" in kinds(fail(driver, 6, 2))


@pytest.mark.parametrize("leaves", [True, False])
def test_it_waits_again_for_a_client_that_moves_to_another_agent(leaves: bool) -> None:
    driver = start(SKIP)
    driver.join(0, 0, 1, 2, 3, agent="spare")
    for client in (2, 3):
        fail(driver, 1, client)
    driver.do(Left(2, "pi", 1)) if leaves else driver.join(2, 0, 1, boot=2)
    driver.reply(3, 0)
    driver.reply(4, 1)
    assert driver.machine.awaited == [2, 3]


def test_a_client_that_failed_and_then_declines_is_counted_once() -> None:
    driver = start(SKIP)
    fail(driver, 1, 3)
    driver.do(Rejected(2, "pi", 3, 1, "used up", failed=True, declined=True))
    driver.reply(3, 0)
    driver.reply(4, 1)
    assert driver.machine.awaited == [2]


def test_a_failure_that_another_agent_reports_does_not_count() -> None:
    driver = start(SKIP)
    driver.reply(1, 0)
    driver.reply(2, 1)
    fail(driver, 3, 2)
    strange = Rejected(4, "other", 3, 1, "no samples", failed=True)
    assert not driver.machine.would_close(strange)
    assert driver.do(strange) == []


def test_a_failure_after_the_reply_changes_nothing() -> None:
    driver = start(SKIP)
    driver.reply(1, 0)
    assert fail(driver, 2, 0) == []
    driver.reply(3, 1)
    assert driver.machine.awaited == [2, 3]


def test_an_exchange_that_wants_the_first_replies_does_not_wait_for_failed_clients_either() -> None:
    driver = Driver(Policy(rounds=2, clients=2, quorum=1, deadline=60.0, skips_failed=True), FirstTwo())
    driver.join(0, 0, 1)
    driver.reply(1, 0)
    assert driver.machine.done == 0
    fail(driver, 2, 1)
    assert driver.machine.done == 1
