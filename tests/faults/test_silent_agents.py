"""An agent that is silent for too long is gone, and its next chunk brings it back before the chunk is judged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.coordinator import claims
from fedquilt_server.history.log_files import read_events
from fedquilt_server.round.events import Joined, Left, Rejected
from fedquilt_server.status import health

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Parcel, Player, Stage

TOPICS = Topics("lab")


def test_a_chunk_that_takes_longer_than_the_silence_counts(
    stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow link nothing else arrives while a chunk is under way."""
    monkeypatch.setattr(claims, "SILENCE_SECONDS", 0.7)
    rests: list[tuple[Player, object]] = []

    def send_half(player: Player, message: RoundMessage) -> None:
        parcel = player.pack(2)
        player.sent[parcel.blob.digest] = parcel
        player.send_chunks(parcel, parcel.headers[:1])
        rests.append((player, parcel))

    stage.ways[2] = send_half
    stage.arrive()
    coordinator = stage.coordinator()

    reported = 0.0

    def turn() -> bool:
        stage.turn()
        nonlocal reported
        if time.monotonic() >= reported + 0.1:
            reported = time.monotonic()
            for player in stage.players.values():
                if not (rests and player.name == "jetson"):
                    player.report()
        if rests and "jetson" not in coordinator.machine.agents:
            assert [board.online for board in stage.board.current.boards if board.agent == "jetson"] == [False]
            player, parcel = rests.pop()
            player.send_chunks(parcel, parcel.headers[1:])  # type: ignore[attr-defined, arg-type]
        return False

    with stage.closing(coordinator):
        coordinator.execute(turn)
        events = [event for _, event in coordinator.run.folder.journal.events_after(0)]
    assert stage.sha256 == undisturbed
    assert [type(event) for event in events if isinstance(event, Joined | Left) and event.agent == "jetson"][:3] == [
        Joined, Left, Joined,
    ]  # fmt: skip
    assert not [event for event in events if isinstance(event, Rejected)]


def test_the_run_goes_on_with_the_owners_after_a_hostile_presence(stage: Stage, undisturbed: str) -> None:
    """A board claims all clients before their owners, and the broker keeps this after it is gone."""
    claim = AgentPresence(agent="a-hostile-board", online=True, boot=1, clients=[0, 1, 2])
    stage.broker.publish(TOPICS.presence("a-hostile-board"), claim.encode(), b"", True)
    stage.play()
    assert stage.sha256 == undisturbed
    assert {row.reason for row in stage.board.current.rejections} <= {
        f"already hosted by a-hostile-board: {clients}. A client moves when its agent leaves or is silent for 90 s; "
        "otherwise, give one of the agents other `clients`"
        for clients in ("clients 0\N{EN DASH}1", "client 2")
    }


def test_a_board_that_hangs_is_shown_as_silent_long_before_it_is_gone(
    stage: Stage, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is stopped, so the broker keeps its connection. The run folder gets both events."""
    monkeypatch.setattr(health, "SHORTEST_SILENCE", 1.2)
    monkeypatch.setattr("fedquilt_server.coordinator.coordinator.HEALTH_SECONDS", 0.05)
    held: list[tuple[Player, object]] = []
    seen: list[str] = []

    def hold(player: Player, message: RoundMessage) -> None:
        player.say(TOPICS.telemetry("jetson"), Telemetry(agent="jetson", boot=1, interval=0.1).encode())
        held.append((player, player.pack(2)))

    stage.ways[2] = hold
    stage.arrive()

    awaited = ["silent", "online"]  # the health in which it replies in the first round, and in the second

    def turn() -> bool:
        stage.turn()
        for board in stage.board.current.boards:
            if board.agent == "jetson" and (not seen or seen[-1] != board.health):
                assert (board.online, bool(board.reason)) == (True, board.health == "silent")
                seen.append(board.health)
        if held and seen[-1] == awaited[0]:
            awaited.pop(0)
            player, parcel = held.pop()
            player.send(parcel)  # type: ignore[arg-type]
        return False

    coordinator = stage.coordinator()
    with stage.closing(coordinator):
        coordinator.execute(turn)
    assert stage.sha256 == undisturbed
    assert seen[:3] == ["online", "silent", "online"]
    kinds = [event.kind for event in read_events(stage.folder / "events.jsonl") if event.board == "jetson"]
    assert kinds[:3] == ["joined", "silent", "back"]


def test_an_agent_is_known_to_send_while_a_part_of_its_reply_has_arrived(stage: Stage, undisturbed: str) -> None:
    """Its other messages may wait behind a chunk on a slow line, so its health allows a longer silence."""
    seen: list[set[str]] = []
    begun: list[Parcel] = []

    def begin(player: Player, _message: RoundMessage) -> None:
        parcel = player.pack(2)
        player.send_chunks(parcel, parcel.headers[:1])
        begun.append(parcel)

    def turn() -> bool:
        seen.append(coordinator._uplink.senders)
        if begun and seen[-1] == {"jetson"}:
            parcel = begun.pop()
            stage.players["jetson"].send_chunks(parcel, parcel.headers[1:])
        return stage.turn()

    stage.ways[2] = begin
    stage.arrive()
    coordinator = stage.coordinator()
    with stage.closing(coordinator):
        coordinator.execute(turn)
    assert {"jetson"} in seen
    assert seen[0] == coordinator._uplink.senders == set()
    assert stage.sha256 == undisturbed
