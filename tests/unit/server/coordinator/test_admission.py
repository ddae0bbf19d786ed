"""Which messages are charged to whom, and that an honest agent or fleet is never muted."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.coordinator.admission import UNKNOWN, Admission
from fedquilt_server.coordinator.claims import all_free
from fedquilt_server.coordinator.flood_guard import FIRST_MUTE, STRANGERS, FloodGuard, Mute
from fedquilt_server.coordinator.ledger import Ledger
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.round.events import Rejected, Replied
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import KnownAgent

TOPICS = Topics("lab")
CHUNK = 256 * 1024


def message(topic: str, payload: bytes = b"x", *, retained: bool = False, qos: int = 1) -> MqttMessage:
    return MqttMessage(topic, payload, b"", retained, lambda: None, qos)


def presence(agent: str, *, retained: bool = False) -> MqttMessage:
    content = AgentPresence(agent=agent, online=True, boot=1, clients=[0]).encode()
    return message(TOPICS.presence(agent), content, retained=retained)


class Door:
    """An admission of an experiment with four clients, and its guard."""

    def __init__(self, clients: int = 4) -> None:
        transport = MemoryTransport(MemoryBroker(), "coordinator", lambda _: None)
        self.guard = FloodGuard(clients, CHUNK)
        self.admission = Admission(transport, TOPICS, self.guard)

    @property
    def mutes(self) -> list[Mute]:
        return list(self.admission.advance())


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


def test_an_agent_with_many_clients_may_offer_all_its_replies_again(door: Door) -> None:
    """A restarted broker may deliver the manifest twice, and the coordinator publishes it again."""
    clients = tuple(range(100))
    agents = {"pi": KnownAgent(1, clients, 1, Profile())}
    machine = cast(Machine, SimpleNamespace(agents=agents, host_of=dict.fromkeys(clients, "pi")))
    ledger = Ledger(machine, door.admission, door.guard, CHUNK, SiteRelays(machine, all_free))
    ledger.open(9.0)
    for manifest, client in itertools.product(range(3), clients):
        topic = TOPICS.reply_chunk("pi", client, 1, 0, 0)
        assert door.admission.admits(message(topic, bytes(CHUNK)))
        ledger.take(TOPICS.parse(topic), CHUNK)
        if not manifest:  # each refusal is journaled once
            ledger.book(Rejected(0.0, "pi", client, 1, "has been counted", "duplicate"))
    assert door.mutes == []


def test_the_relay_of_a_site_may_send_for_all_boards_behind_it(door: Door) -> None:
    boards = {f"pi-{number}": tuple(range(10 * number, 10 * number + 10)) for number in range(20)}
    agents = {name: KnownAgent(1, clients, 1, Profile()) for name, clients in boards.items()}
    hosts = {client: name for name, clients in boards.items() for client in clients}
    known = {**agents, "hall-relay": KnownAgent(1, (), 1, Profile())}
    machine = cast(Machine, SimpleNamespace(agents=known, host_of=hosts))
    relays = SiteRelays(machine, all_free)
    for name in known:
        relay = name == "hall-relay"
        relays.take(AgentPresence(agent=name, online=True, boot=1, site="hall", site_relay=relay))
    ledger = Ledger(machine, door.admission, door.guard, CHUNK, relays)
    ledger.open(9.0)
    for refused, (client, board) in itertools.product((False, True), hosts.items()):
        topic = TOPICS.reply_chunk("hall-relay", client, 1, 0, 0)
        for _ in range(3):
            assert door.admission.admits(message(topic, bytes(CHUNK)))
            ledger.take(TOPICS.parse(topic), CHUNK)
        if refused:
            ledger.book(Rejected(0.0, board, client, 1, "is not finite"))
        else:
            ledger.book(Replied(0.0, board, client, 1, 0, "d", 1.0, relay="hall-relay"))
    assert door.mutes == []


def test_claims_without_effect_give_no_room(door: Door) -> None:
    clients = tuple(range(100))
    agents = {name: KnownAgent(1, clients, 1, Profile()) for name in ("pi", "thief")}
    machine = cast(Machine, SimpleNamespace(agents=agents, host_of=dict.fromkeys(clients, "pi")))
    Ledger(machine, door.admission, door.guard, CHUNK, SiteRelays(machine, all_free)).open(9.0)
    assert door.guard.room("thief") < door.guard.room("pi") == door.guard.room("thief") + 100 * 19


def test_a_late_reply_of_a_large_exchange_still_has_room(door: Door) -> None:
    machine = cast(Machine, SimpleNamespace(agents={}, host_of={}))
    ledger = Ledger(machine, door.admission, door.guard, CHUNK, SiteRelays(machine, all_free))
    ledger.open(1000.0)
    large = door.guard.room("pi")
    ledger.open(1.0)
    assert door.guard.room("pi") == large
    ledger.open(1.0)
    assert door.guard.room("pi") < large
