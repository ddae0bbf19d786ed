"""Which messages are charged to whom, and that an honest agent or fleet is never muted."""

from __future__ import annotations

import itertools
import time

import pytest
from tests.support.door import CHUNK, TOPICS, Door, message, presence
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.flood_control.admission import UNKNOWN, Admission
from fedquilt_common.flood_control.flood_guard import FIRST_MUTE, STRANGERS, Mute
from fedquilt_common.wire.topics import RELAYED


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # nothing leaks
    return Door()


@pytest.mark.parametrize("online", ["true", '"no valid presence"'])
def test_a_range_costs_as_much_as_the_clients_that_it_names(door: Door, online: str) -> None:
    text = f'{{"v":1,"agent":"pi","online":{online},"boot":1,"clients":[[0,399999]]}}'
    for _ in range(5):
        door.admission.admits(message(TOPICS.presence("pi"), text.encode()))
    assert door.mutes == [Mute("pi", FIRST_MUTE)]


@pytest.mark.parametrize("retained", [False, True])
def test_sixty_boards_and_four_clients_mute_nobody(door: Door, retained: bool) -> None:
    """The coordinator also receives its own presence."""
    for number in range(60):
        assert door.admission.admits(presence(f"pi-{number}", retained=retained))
        assert door.admission.admits(message(TOPICS.coordinator))
    assert door.mutes == []


def test_the_boards_of_the_journal_are_not_new(door: Door) -> None:
    names = [f"pi-{number}" for number in range(5000)]
    door.admission.start(names)
    assert all(door.admission.admits(presence(name)) for name in names)
    assert door.mutes == []


def test_presences_of_coordinators_arrive_whatever_is_muted(door: Door) -> None:
    for number in range(1000):
        door.admission.admits(presence(f"pi-{number}"))
        assert door.admission.admits(message(TOPICS.coordinator))
    assert door.mutes == [Mute(STRANGERS, FIRST_MUTE)]
    assert not door.admission.admits(presence("another"))
    assert not door.admission.ignores(message(TOPICS.coordinator))


@pytest.mark.parametrize(
    ("topic", "sender"),
    [
        ("agents/pi-0/replies/x", "pi-0"), ("agents/pi-0", "pi-0"), ("agents/p i/presence", UNKNOWN),
        ("agents//presence", UNKNOWN), ("coordinator", UNKNOWN), ("agents", UNKNOWN),
    ],
)  # fmt: skip
def test_a_malformed_topic_is_charged_to_the_agent_that_it_names(door: Door, topic: str, sender: str) -> None:
    assert door.admission.sender(f"fedquilt/v1/lab/{topic}") == sender


def test_an_agent_that_floods_with_malformed_topics_is_muted_itself(door: Door) -> None:
    topic = "fedquilt/v1/lab/agents/pi-0/replies/x"
    while door.admission.admits(message(topic)):
        door.admission.charge(door.admission.sender(topic), 10.0)
    assert door.mutes == [Mute("pi-0", FIRST_MUTE)]
    assert door.admission.admits(presence("another"))


def test_a_charge_without_an_agent_opens_no_account(door: Door) -> None:
    for _ in range(1000):
        door.admission.charge(UNKNOWN, 10.0)
    assert door.mutes == [Mute(STRANGERS, FIRST_MUTE)]


def test_what_a_relay_publishes_and_receives_itself_costs_nothing(door: Door) -> None:
    relay = Admission(MemoryTransport(MemoryBroker(), "relay", lambda _: None), TOPICS, door.guard, RELAYED, "relay")
    numbers = itertools.count()
    while not (mutes := list(relay.advance())):
        relay.admits(presence(f"pi-{next(numbers)}"))
        assert relay.admits(message(TOPICS.reply_chunk("relay", 0, 1, 0, 0), bytes(CHUNK)))
    assert mutes == [Mute(STRANGERS, FIRST_MUTE)]
    assert relay.admits(message(TOPICS.inbox("relay")))
