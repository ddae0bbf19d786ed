"""Bytes that are cut, changed or injected by another agent: the honest reply still counts, once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.support.memory_transport import MemoryTransport

from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import EndMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.coordinator.display import show_finished
from fedquilt_server.runs.blob_store import BlobStore
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.snapshot import StatusStore

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Parcel, Player, Stage

TOPICS = Topics("lab")


def test_a_cut_copy_of_a_chunk_does_not_spoil_the_transfer(stage: Stage, undisturbed: str) -> None:
    def disturbed(player: Player, _: RoundMessage) -> None:
        parcel = player.pack(0)
        first, *rest = parcel.headers
        player.sent[parcel.blob.digest] = parcel
        player.send_chunks(parcel, [first])
        player.say(parcel.topic(rest[0].index), parcel.bytes_of(rest[0])[:-7], rest[0].encode())
        player.send_chunks(parcel, rest)

    stage.ways[0] = disturbed
    stage.play()
    assert stage.sha256 == undisturbed
    assert [(row.clients, row.rejected, row.duplicates) for row in stage.rows] == [(3, 1, 0), (3, 1, 0)]
    told = [(r.outcome, r.damaged) for r in stage.players["pi"].receipts if r.client == 0]
    assert told == [("rejected", True), ("accepted", False)] * 2


def test_changed_bytes_are_found_and_the_same_reply_may_come_again(stage: Stage, undisturbed: str) -> None:
    parcels: list[Parcel] = []

    def changed(player: Player, _: RoundMessage) -> None:
        parcel = player.pack(0)
        parcels.append(parcel)
        first, *rest = parcel.headers
        player.say(parcel.topic(0), bytes(first.length), first.encode())
        player.send_chunks(parcel, rest)

    def turn() -> bool:
        stage.turn()
        pi = stage.players["pi"]
        for parcel in [p for p in parcels if any(r.damaged and r.digest == p.blob.digest for r in pi.receipts)]:
            parcels.remove(parcel)
            pi.send(parcel)
        return False

    stage.ways[0] = changed
    stage.play_with(turn)
    assert stage.sha256 == undisturbed
    assert [(row.clients, row.rejected) for row in stage.rows] == [(3, 1), (3, 1)]


def test_the_end_is_told_again_when_the_broker_was_away(stage: Stage) -> None:
    """A lost connection must lose neither the last message nor the clearing of retained messages."""
    stage.arrive()
    coordinator = stage.coordinator()
    transport = coordinator._transport
    assert isinstance(transport, MemoryTransport)
    turns_away = 0

    def turn() -> bool:
        nonlocal turns_away
        stage.turn()
        if coordinator.machine.finished:
            turns_away += 1
            if turns_away == 1:
                transport.break_off()
            elif turns_away == 3:
                assert not coordinator.run.folder.closed
                transport.connect()
        return False

    with stage.closing(coordinator):
        coordinator.execute(turn)
        assert coordinator.run.folder.closed
    assert turns_away > 3
    retained = {
        topic.removeprefix("fedquilt/v1/lab/"): payload for topic, (payload, _) in stage.broker.retained.items()
    }
    assert EndMessage.model_validate_json(retained["end"]).run == coordinator.run.folder.run
    assert set(retained) == {"end", "coordinator", "agents/pi/presence", "agents/jetson/presence"}


def test_the_seconds_of_rounds_do_not_overlap(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of writing a slow checkpoint counts for the round that it ends, and for no other."""
    put = BlobStore.put

    def slow_put(self: BlobStore, arrays: Arrays, precision: Precision = "fp32") -> Blob:
        time.sleep(0.1)
        return put(self, arrays, precision)

    monkeypatch.setattr(BlobStore, "put", slow_put)
    started = time.time()
    stage.play()
    assert sum(row.seconds for row in stage.rows) <= time.time() - started
    assert all(row.seconds >= 0.1 for row in stage.rows)


def test_the_counts_of_the_page_survive_the_coordinator(stage: Stage) -> None:
    def disturbed(player: Player, _: RoundMessage) -> None:
        parcel = player.pack(0)
        player.say(parcel.topic(0), b"cut", parcel.headers[0].encode())
        player.send(parcel)

    stage.ways[0] = disturbed
    stage.play()
    shown = stage.board.current
    assert (shown.accepted, shown.rejected, shown.late) == (6, 2, 0)
    later = StatusStore()
    run = ActiveRun(stage.experiment, stage.folder, resume=True)
    show_finished(run, later)
    run.folder.release()
    assert (later.current.accepted, later.current.rejected, later.current.late) == (6, 2, 0)
    assert later.current.history == shown.history
