"""A reply that arrives while its agent does not host the client: refused for now, and counted later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.messages import AgentPresence, MissingMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")


def test_a_reply_that_overtakes_the_presence_counts_at_once(stage: Stage, undisturbed: str) -> None:
    """After a cut, the MQTT client resends a reply before the agent publishes its presence."""

    def cut(player: Player, message: RoundMessage) -> None:
        will = AgentPresence(agent=player.name, online=False, boot=1)
        player.transport.publish(TOPICS.presence(player.name), will.encode(), retain=True)
        player.send(player.pack(2))
        player.appear((2,))

    stage.ways[2] = cut
    stage.play()
    assert [(r.outcome, r.final) for r in stage.players["jetson"].receipts] == [("accepted", True)] * 2
    assert [(row.rejected, row.clients) for row in stage.rows] == [(0, 3)] * 2
    assert stage.sha256 == undisturbed


def test_a_reply_that_overtakes_a_claim_counts_later(stage: Stage, undisturbed: str) -> None:
    def overtake(player: Player, message: RoundMessage) -> None:
        player.appear(())
        parcel = player.send(player.pack(2))
        for _ in range(3):  # probes
            player.send_chunks(parcel, parcel.headers[-1:])
        player.appear((2,))
        player.send_chunks(parcel, parcel.headers[-1:])

    stage.ways[2] = overtake
    stage.play()
    receipts = stage.players["jetson"].receipts
    first = receipts[:4]
    assert {(r.outcome, r.final, r.reason) for r in first} == {
        ("rejected", False, "agent jetson does not host client 2")
    }
    assert [(r.outcome, r.final) for r in receipts if r.final] == [("accepted", True)] * 2
    assert any(isinstance(message, MissingMessage) for message in stage.players["jetson"].inbox)
    assert [row.rejected for row in stage.rows] == [1, 1]  # probes are answered, but journaled once
    assert stage.sha256 == undisturbed


def test_a_reply_of_an_exchange_that_is_not_open_may_count_later(stage: Stage) -> None:
    def early(player: Player, message: RoundMessage) -> None:
        parcel = player.pack(2)
        parcel.round += 1
        player.send(parcel)
        player.send(player.pack(2))

    stage.ways[2] = early
    stage.play()
    refused = [r for r in stage.players["jetson"].receipts if r.outcome == "rejected"]
    assert {(r.final, r.reason.partition(", ")[2]) for r in refused} == {(False, "exchange 0 is not open")}
