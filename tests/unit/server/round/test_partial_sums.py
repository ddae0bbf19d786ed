"""The members of a partial sum in the machine: they count together, or not at all."""

from __future__ import annotations

from tests.unit.server.round.test_machine import REPLACE, WAIT, Driver, asked, kinds

from fedquilt_server.round.events import Command, Receipt, Replied, Ticked


def reply_together(driver: Driver, at: float, *clients: int) -> list[Command]:
    """Send the members of a sum one after another, as the journal has them."""
    commands = []
    for number, client in enumerate(clients):
        more = len(clients) - 1 - number
        commands += driver.do(Replied(at, "pi", client, 1, 0, "1.0", 1.0, carrier=clients[0], more=more))
    return commands


def test_an_exchange_closes_with_the_last_member_and_not_before() -> None:
    """After the deadline a quorum of two closes the exchange; the sum of three must not be cut into two and one."""
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    driver.do(Ticked(60))
    commands = reply_together(driver, 61, 0, 1, 2)
    assert kinds(commands) == ["Receipt", "Receipt", "Receipt", "Checkpoint", "Send"]
    assert [c.outcome for c in commands if isinstance(c, Receipt)] == ["accepted"] * 3
    assert driver.checkpoints[0].tally.clients == 3


def test_receipts_name_the_sum_and_count_what_follows() -> None:
    driver = Driver(WAIT)
    driver.join(0, 0, 1, 2)
    receipts = [c for c in reply_together(driver, 1, 0, 2) if isinstance(c, Receipt)]
    assert [(one.client, one.carrier, one.more) for one in receipts] == [(0, 0, 1), (2, 0, 0)]


def test_a_round_that_starts_again_without_a_member_drops_the_sum_as_a_whole() -> None:
    driver = Driver(REPLACE, per_round=3)
    driver.join(0, 0, 1, 2, 3)
    chosen = asked(driver)
    exchange = driver.machine.exchange
    assert exchange is not None
    reply_together(driver, 1, *chosen[:2])
    again = type(exchange)(exchange.id, {client: exchange.tasks[client] for client in chosen}, None)
    assert [reply.client for reply in again.same_replies(exchange)] == chosen[:2]
    fewer = type(exchange)(exchange.id, {client: exchange.tasks[client] for client in chosen[1:]}, None)
    assert fewer.same_replies(exchange) == []
