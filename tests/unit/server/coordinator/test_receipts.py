"""Receipts with the same outcome travel together; each agent learns the outcome of each of its replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from fedquilt_common.wire.messages import MAX_OTHERS, ReceiptMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import SMALLEST_PAYLOAD
from fedquilt_server.coordinator.receipts import ReceiptPublisher
from fedquilt_server.round.events import Receipt

TOPICS = Topics("lab")
FIRST = Receipt("pi", 0, 2, 1, "0" * 64, "accepted", "")


class Inboxes:
    """What is published to each agent's inbox."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ReceiptMessage]] = []

    def publish(self, topic: str, payload: bytes) -> bool:
        assert len(payload) <= SMALLEST_PAYLOAD
        self.sent.append((topic, ReceiptMessage.model_validate_json(payload)))
        return True

    def take(self) -> list[tuple[str, list[int]]]:
        """Return and forget the agents and the clients of each message."""
        sent, self.sent = self.sent, []
        return [(topic.split("/")[-2], [one.client for one in message.divide()]) for topic, message in sent]


@pytest.fixture
def inboxes() -> Inboxes:
    return Inboxes()


@pytest.fixture
def receipts(inboxes: Inboxes) -> ReceiptPublisher:
    return ReceiptPublisher(cast(Any, inboxes), TOPICS, "run-1")


def named(client: int, agent: str = "pi") -> Receipt:
    return replace(FIRST, agent=agent, client=client, digest=f"{client:064x}")


def test_each_agent_gets_one_message(receipts: ReceiptPublisher, inboxes: Inboxes) -> None:
    for client in range(6):
        receipts.collect(named(client, ("pi", "nano")[client % 2]))
    assert inboxes.take() == []
    receipts.flush()
    receipts.flush()
    (pi, first), (nano, second) = inboxes.sent
    assert [one.digest for one in first.divide()] == [f"{client:064x}" for client in (0, 2, 4)]
    assert {(one.outcome, one.round, one.exchange, one.run) for one in second.divide()} == {("accepted", 2, 1, "run-1")}
    assert (pi, nano) == (TOPICS.inbox("pi"), TOPICS.inbox("nano"))


def test_other_outcomes_travel_in_other_messages_in_their_order(receipts: ReceiptPublisher, inboxes: Inboxes) -> None:
    late = replace(named(1), outcome="late", reason="the exchange has closed")
    for receipt in (named(0), late, named(2)):
        receipts.collect(receipt)
    receipts.flush()
    assert inboxes.take() == [("pi", [0]), ("pi", [1]), ("pi", [2])]


def test_a_message_of_many_receipts_fits_the_smallest_packet(receipts: ReceiptPublisher, inboxes: Inboxes) -> None:
    for client in range(99_000, 99_000 + MAX_OTHERS + 2):
        receipts.collect(named(client))
    receipts.flush()
    assert [len(clients) for _, clients in inboxes.take()] == [MAX_OTHERS + 1, 1]


def test_the_receipt_of_a_sum_waits_for_its_last_member(receipts: ReceiptPublisher, inboxes: Inboxes) -> None:
    """If the round starts again before that, the sum counts only when it is journaled as a whole."""
    members = [replace(named(client), digest="5" * 64, carrier=0, more=2 - client) for client in range(3)]
    for member in members[:2]:
        receipts.collect(member)
    receipts.flush()
    assert inboxes.sent == []
    receipts.drop_sums()
    receipts.flush()
    assert inboxes.sent == []
    for member in members:
        receipts.collect(member)
    receipts.flush()
    ((_, message),) = inboxes.sent
    assert (message.client, message.digest, message.members) == (0, "5" * 64, [0, 1, 2])
