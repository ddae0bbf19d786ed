"""An agent that floods is muted for a while: nobody else waits, and its own replies count as always."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from fedquilt_common.errors import FedquiltError
from fedquilt_common.flood_control import admission, flood_guard
from fedquilt_common.flood_control.flood_guard import BURST
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Crashed, Deliver, MqttMessage
from fedquilt_server.coordinator import claims, rate_limit
from fedquilt_server.round.events import Joined

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")
TOTAL = 1200


@pytest.fixture(autouse=True)
def short_mutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_guard, "FIRST_MUTE", 0.3)
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.1)


def bad_chunk(player: Player, number: int) -> None:
    header = ChunkHeader(f"{number:064x}", 0, 2, 1 << 40)
    player.say(TOPICS.reply_chunk(player.name, 0, 2, 0, 0), b"x", header.encode())


def telemetry(player: Player, number: int) -> None:
    message = Telemetry(agent=player.name, boot=1, memory_used=number)
    player.say(TOPICS.telemetry(player.name), message.encode())


def changed_presence(player: Player, number: int) -> None:
    message = AgentPresence(agent=player.name, online=True, boot=1 + number, clients=[0, 1])
    player.transport.publish(TOPICS.presence(player.name), message.encode(), retain=True)


def large_chunk(player: Player, number: int) -> None:
    header = ChunkHeader(f"{number:064x}", 0, 1, 1 << 18)
    player.say(TOPICS.reply_chunk(player.name, 7, 1, 0, 0), bytes(1 << 18), header.encode())


def probe(stage: Stage, last: list[float]) -> None:
    """Let each agent ask now and then for the receipts that it waits for, as agents do."""
    if time.monotonic() - last[-1] < 0.1:
        return
    last.append(time.monotonic())
    for player in stage.players.values():
        settled = {receipt.digest for receipt in player.receipts}
        for parcel in player.sent.values():
            if parcel.blob.digest not in settled:
                player.send_chunks(parcel, parcel.headers[-1:])


@pytest.mark.parametrize("message", [bad_chunk, telemetry, changed_presence, large_chunk])
def test_an_agent_that_floods_and_replies_is_muted_and_its_replies_count(
    message: object, stage: Stage, undisturbed: str
) -> None:
    assert callable(message)
    narrow: list[bool] = []
    probes = [0.0]

    def flood(player: Player, current: RoundMessage) -> None:
        if player.name == "pi" and current.round == 2:
            for number in range(TOTAL if message is not large_chunk else 200):
                message(player, number)

    def turn() -> bool:
        stage.turn(flood)
        probe(stage, probes)
        narrow.append(TOPICS.telemetry("+") not in stage.broker.sessions["coordinator"].filters)
        return False

    stage.play_with(turn)
    assert stage.sha256 == undisturbed
    assert [row.clients for row in stage.rows] == [3, 3]
    assert any(narrow)
    assert not narrow[-1]
    mutes = [event for event in stage.refusals() if "floods" in event.reason]
    assert {(event.agent, event.client) for event in mutes} == {("pi", None)}
    assert "ignored for 0.3 s" in mutes[0].reason
    assert len(stage.refusals()) <= BURST


def test_the_others_go_on_while_an_agent_is_muted(
    stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flooding agent without clients delays nobody, also if it never stops."""
    monkeypatch.setattr(flood_guard, "FIRST_MUTE", 600.0)
    noisy = stage.player("noisy")

    def turn() -> bool:
        for number in range(TOTAL if noisy.round is None else 10):
            telemetry(noisy, number)
        noisy.listen()
        return stage.turn()

    noisy.arrive(())
    started = time.monotonic()
    stage.play_with(turn)
    assert time.monotonic() - started < 60
    assert stage.sha256 == undisturbed
    assert [r.agent for r in stage.board.current.rejections] == ["noisy"]


def test_an_agent_that_appears_during_a_mute_takes_part(
    stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flood_guard, "FIRST_MUTE", 600.0)
    jetson = stage.players.pop("jetson")
    noisy = stage.player("noisy")
    steps, probes = 0, [0.0]

    def turn() -> bool:
        nonlocal steps
        steps += 1
        if steps == 1:
            for number in range(TOTAL):
                telemetry(noisy, number)
        elif steps == 3:
            stage.players["jetson"] = jetson
            jetson.arrive((2,))
        stage.turn()
        probe(stage, probes)
        return False

    noisy.arrive(())
    stage.play_with(turn)
    assert stage.sha256 == undisturbed


def test_an_agent_that_leaves_is_forgotten(stage: Stage, undisturbed: str) -> None:
    guest, known = stage.player("guest"), []

    def turn() -> bool:
        known.append("guest" in coordinator._admission._subscriptions._known)
        if known[-1]:
            gone = AgentPresence(agent="guest", online=False, boot=1)
            guest.transport.publish(TOPICS.presence("guest"), gone.encode(), retain=True)
        return stage.turn()

    guest.arrive(())
    stage.arrive()
    with stage.closing(stage.coordinator()) as coordinator:
        coordinator.execute(turn)
    assert stage.sha256 == undisturbed
    assert any(known)
    assert not known[-1]


def test_many_names_are_not_journaled(stage: Stage, undisturbed: str) -> None:
    noisy, probes = stage.player("noisy"), [0.0]
    noisy.transport.connect()

    def flood(player: Player, message: RoundMessage) -> None:
        for number in range(TOTAL if (player.name, message.round) == ("pi", 1) else 0):
            presence = AgentPresence(agent=f"name-{number}", online=True, boot=1, clients=[0])
            noisy.transport.publish(TOPICS.presence(presence.agent), presence.encode())

    def turn() -> bool:
        stage.turn(flood)
        probe(stage, probes)
        return False

    stage.play_with(turn)
    assert stage.sha256 == undisturbed
    assert len(stage.board.current.boards) < 200
    assert sum(isinstance(event, Joined) for event in stage.events()) < 200
    assert sum("too many new agents" in event.reason for event in stage.refusals()) == 1


def test_messages_of_quality_of_service_0_are_ignored(stage: Stage, undisturbed: str) -> None:
    """The protocol has none, and nothing else limits how fast they arrive."""
    taken: list[str] = []

    def spy(coordinator_deliver: object) -> object:
        assert callable(coordinator_deliver)

        def deliver(incoming: object) -> None:
            coordinator_deliver(incoming)
            if isinstance(incoming, MqttMessage) and incoming.topic == TOPICS.telemetry("pi"):
                message = Telemetry(agent="pi", boot=1, memory_used=999).encode()
                coordinator_deliver(MqttMessage(incoming.topic, message, b"", False, lambda: taken.append("ack"), 0))

        return deliver

    def turn() -> bool:
        if len(taken) < 10:
            telemetry(stage.players["pi"], 1)
        return stage.turn()

    stage.arrive()
    with stage.closing(stage.coordinator(spy)) as coordinator:  # type: ignore[arg-type]
        coordinator.execute(turn)
    assert stage.sha256 == undisturbed
    assert taken
    assert next(b for b in stage.board.current.boards if b.agent == "pi").memory_used == 1


@pytest.mark.parametrize(("limit", "reason"), [("MOST_AGENTS", "2 agents are connected"), ("MOST_CLAIMS", "claim 4")])
def test_too_many_agents_or_claims_are_refused(
    limit: str, reason: str, stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, limit, {"MOST_AGENTS": 2, "MOST_CLAIMS": 3}[limit])
    late = stage.player("late")

    def join(player: Player, message: RoundMessage) -> None:
        if (player.name, message.round) == ("pi", 1):
            late.arrive((0,))

    stage.play(join)
    assert stage.sha256 == undisturbed
    (refusal,) = stage.refusals()
    assert refusal.agent == "late"
    assert reason in refusal.reason
    assert "late" not in [board.agent for board in stage.board.current.boards]


def test_a_receipt_follows_every_offer_of_a_refused_reply(
    stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sends one reply at a time: without a receipt, its other clients would wait forever."""
    monkeypatch.setattr(rate_limit, "REFUSALS_PER_EXCHANGE", 3)
    refused: list[str] = []

    def offer_again(player: Player, message: RoundMessage) -> None:
        if (player.name, message.round) == ("pi", 2):
            for number in range(5):
                parcel = player.pack(0, weight=2.0 + number)
                parcel.round = 1
                refused.append(parcel.blob.digest)
                for _ in range(3):
                    player.send(parcel)

    stage.play(offer_again)
    assert stage.sha256 == undisturbed
    receipts = [receipt.digest for receipt in stage.players["pi"].receipts]
    assert [receipts.count(digest) for digest in refused] == [3] * 5
    journaled = [event for event in stage.refusals() if event.outcome == "duplicate"]
    assert len(journaled) == 3


def test_the_room_for_replies_is_there_before_the_manifest(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that continue an upload receive the manifest before the coordinator does anything else."""
    rooms: list[tuple[float, float]] = []
    stage.arrive()
    with stage.closing(stage.coordinator()) as coordinator:
        guard, publish = coordinator._admission.guard, coordinator._downlink.publish
        send = coordinator._driver._send
        before: list[float] = []

        def spy_publish(*args: Any) -> Any:
            before.append(guard.room("pi"))
            return publish(*args)

        def spy_send(command: Any) -> None:
            send(command)
            rooms.append((before[-1], guard.room("pi")))

        monkeypatch.setattr(coordinator._downlink, "publish", spy_publish)
        monkeypatch.setattr(coordinator._driver, "_send", spy_send)
        coordinator.execute(stage.turn)
    assert rooms
    assert all(at_publish == at_work for at_publish, at_work in rooms)


def test_a_connection_that_crashes_ends_the_run_with_its_text(stage: Stage) -> None:
    """The network thread is gone then, so no message would ever arrive again."""
    delivers: list[Deliver] = []

    def keep(deliver: Deliver) -> Deliver:
        delivers.append(deliver)
        return deliver

    def turn() -> bool:
        delivers[0](Crashed(FedquiltError("an unforeseen error")))
        return stage.turn()

    stage.arrive()
    with (
        stage.closing(stage.coordinator(keep)) as coordinator,
        pytest.raises(FedquiltError, match="an unforeseen error"),
    ):
        coordinator.execute(turn)
    assert (stage.board.current.phase, stage.board.current.message) == ("failed", "an unforeseen error")
