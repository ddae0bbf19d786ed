"""The relay of a site sends the replies of the boards behind it: what counts, what is refused, and what restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.test_hostile_sums import make_exact, pack_sum

from fedquilt_common.types import Assignments
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.history.log_files import read_events
from fedquilt_server.round.events import Replied

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")
RELAY = "hall-relay"


def appear(player: Player, clients: tuple[int, ...], site: str | None, *, relay: bool = False) -> None:
    here = AgentPresence(agent=player.name, online=True, boot=1, clients=list(clients), site=site, site_relay=relay)
    player.transport.publish(TOPICS.presence(player.name), here.encode(), retain=True)


@pytest.fixture
def hall(stage: Stage) -> Stage:
    """A stage whose agent ``pi`` is behind the site ``hall``, with a relay that sends for clients 0 and 1."""
    from tests.faults.conftest import FLEET

    make_exact(stage)
    stage.players[RELAY] = stage.player(RELAY)

    def arrive() -> None:
        for name, player in stage.players.items():
            player.arrive(FLEET.get(name, ()))
        appear(stage.players["pi"], (0, 1), "hall")
        appear(stage.players[RELAY], (), "hall", relay=True)

    stage.arrive = arrive  # type: ignore[method-assign]
    stage.ways = {0: lambda *_: None, 1: lambda *_: None}
    return stage


def send_sum(player: Player, message: RoundMessage) -> None:
    if player.name == RELAY:
        player.send(pack_sum(player, message))


def test_the_sum_of_a_site_counts_and_its_relay_gets_the_receipt(hall: Stage, single_replies: str) -> None:
    hall.play(send_sum)
    assert hall.sha256 == single_replies
    told = hall.players[RELAY].receipts
    assert [(receipt.outcome, receipt.members) for receipt in told] == [("accepted", [0, 1])] * 2
    assert not hall.players["pi"].receipts
    replies = [event for event in hall.events() if isinstance(event, Replied) and event.client < 2]
    assert {(reply.agent, reply.relay, reply.carrier) for reply in replies} == {("pi", RELAY, 0)}


def test_single_replies_of_a_site_count_too(hall: Stage, single_replies: str) -> None:
    def forward(player: Player, message: RoundMessage) -> None:
        if player.name == RELAY:
            for client in (1, 0):
                player.send(player.pack(client))

    hall.play(forward)
    assert hall.sha256 == single_replies
    assert [receipt.outcome for receipt in hall.players[RELAY].receipts] == ["accepted"] * 4


def test_a_client_of_a_board_at_another_place_does_not_count(hall: Stage, single_replies: str) -> None:
    def claim(player: Player, message: RoundMessage) -> None:
        if player.name == RELAY:
            player.send(player.pack(2))
            player.send(pack_sum(player, message, added=(0, 1, 2)))
        send_sum(player, message)

    hall.play(claim)
    assert hall.sha256 == single_replies
    told = [receipt for receipt in hall.players[RELAY].receipts if receipt.outcome == "rejected"]
    assert [(receipt.final, receipt.members) for receipt in told] == [(False, []), (True, [2])] * 2
    assert "no board behind the site hall hosts client 2" in told[0].reason
    assert "(2): no board behind the site hall hosts them" in told[1].reason


def test_a_sum_with_a_client_twice_or_without_one_is_refused_and_nothing_is_lost(
    hall: Stage, single_replies: str
) -> None:
    def cheat(player: Player, message: RoundMessage) -> None:
        if player.name == RELAY:
            player.send(pack_sum(player, message, added=(0, 1, 1), listed=(0, 1)))
            player.send(pack_sum(player, message, added=(0,), listed=(0, 1)))
        send_sum(player, message)

    hall.play(cheat)
    assert hall.sha256 == single_replies
    reasons = [receipt.reason for receipt in hall.players[RELAY].receipts if receipt.outcome == "rejected"]
    assert len(reasons) == 4
    assert "adds client 1 twice" in reasons[0]
    assert "lists client 1, but leaves its reply out" in reasons[1]


@pytest.mark.parametrize("named", [{}, {RELAY: "roof"}, {"other": "hall"}])
def test_an_inventory_decides_who_is_a_relay(named: dict[str, str], hall: Stage, single_replies: str) -> None:
    hall.assignments = Assignments(relays=named)

    def direct(player: Player, message: RoundMessage) -> None:
        send_sum(player, message)
        if player.name == "pi":
            player.send(pack_sum(player, message))

    hall.play(direct)
    assert hall.sha256 == single_replies
    told = hall.players[RELAY].receipts
    assert told
    assert {(receipt.outcome, receipt.final, receipt.reason) for receipt in told} == {
        ("rejected", False, f"agent {RELAY} does not host client 0, but agent pi does")
    }


def test_a_restarted_coordinator_replays_what_the_relay_sent(hall: Stage, single_replies: str) -> None:
    hall.ways[2] = lambda *_: None
    hall.arrive()
    first = hall.coordinator()
    with hall.closing(first):
        steps = iter(range(40))
        first.execute(lambda: hall.turn(send_sum) or next(steps, None) is None)
        exchange = first.machine.exchange
        assert exchange is not None
        assert sorted(exchange.replies) == [0, 1]
    del hall.ways[2]
    hall.forget_answers()
    again = hall.coordinator()
    with hall.closing(again):
        again.execute(lambda: hall.turn(send_sum))
        assert again.run.folder.finished
    assert hall.sha256 == single_replies


def test_a_refused_reply_is_that_of_the_board_that_hosts_the_client(hall: Stage, single_replies: str) -> None:
    def spoil(player: Player, message: RoundMessage) -> None:
        if player.name == RELAY:
            player.send(player.pack(0, weight=-1.0))
        send_sum(player, message)

    hall.play(spoil)
    assert hall.sha256 == single_replies
    assert {(event.agent, event.client, event.failed) for event in hall.refusals()} == {("pi", 0, True)}
    assert [receipt.outcome for receipt in hall.players[RELAY].receipts] == ["rejected", "accepted"] * 2


def test_a_relay_that_does_not_connect_is_reported_once(hall: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt_server.coordinator.agent_messages.RELAY_SECONDS", 0.0)
    monkeypatch.setattr("fedquilt_server.coordinator.coordinator.HEALTH_SECONDS", 0.0)
    hall.assignments = Assignments(relays={RELAY: "hall"})
    hall.players.pop(RELAY)
    for name, player in hall.players.items():
        player.arrive((0, 1) if name == "pi" else (2,))
    appear(hall.players["pi"], (0, 1), "hall")
    coordinator = hall.coordinator()
    with hall.closing(coordinator):
        steps = iter(range(20))
        coordinator.execute(lambda: hall.turn() or next(steps, None) is None)
    texts = [event.text for event in read_events(hall.folder / "events.jsonl")]
    assert texts.count("The relay of site hall is offline: the replies of its boards wait there") == 1
