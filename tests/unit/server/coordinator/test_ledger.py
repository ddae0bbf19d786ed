"""What the replies of an agent cost it: an honest one is never muted."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.door import CHUNK, TOPICS, Door, message

from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.coordinator.claims import all_free
from fedquilt_server.coordinator.ledger import Ledger
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.round.events import Rejected, Replied
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import KnownAgent


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # nothing leaks
    return Door()


def test_an_agent_with_many_clients_may_offer_all_its_replies_again(door: Door) -> None:
    """A restarted broker may deliver the manifest twice, and the coordinator publishes it again."""
    clients = tuple(range(100))
    agents = {"pi": KnownAgent(1, clients, 1, Profile())}
    machine = cast(Machine, SimpleNamespace(agents=agents, host_of=dict.fromkeys(clients, "pi")))
    ledger = Ledger(machine, door.admission, CHUNK, SiteRelays(machine, all_free))
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
    ledger = Ledger(machine, door.admission, CHUNK, relays)
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
    Ledger(machine, door.admission, CHUNK, SiteRelays(machine, all_free)).open(9.0)
    assert door.guard.room("thief") < door.guard.room("pi") == door.guard.room("thief") + 100 * 19


def test_a_late_reply_of_a_large_exchange_still_has_room(door: Door) -> None:
    machine = cast(Machine, SimpleNamespace(agents={}, host_of={}))
    ledger = Ledger(machine, door.admission, CHUNK, SiteRelays(machine, all_free))
    ledger.open(1000.0)
    large = door.guard.room("pi")
    ledger.open(1.0)
    assert door.guard.room("pi") == large
    ledger.open(1.0)
    assert door.guard.room("pi") < large
