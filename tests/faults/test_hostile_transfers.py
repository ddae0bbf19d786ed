"""Chunks that are lost, shuffled, refused or far too many: each reply still counts once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.messages import MissingMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")


def counted(stage: Stage) -> list[tuple[int, int, int, int]]:
    return [(row.clients, row.late, row.rejected, row.duplicates) for row in stage.rows]


@pytest.mark.parametrize("seed", range(5))
def test_chunks_out_of_order_and_doubled_make_one_reply(seed: int, stage: Stage, undisturbed: str) -> None:
    def shuffle(player: Player, message: RoundMessage) -> None:
        parcel = player.pack(0)
        headers = [*parcel.headers, *parcel.headers[:2]]
        random.Random(seed).shuffle(headers)
        player.sent[parcel.blob.digest] = parcel
        player.send_chunks(parcel, headers)

    stage.ways[0] = shuffle
    stage.play()
    assert stage.sha256 == undisturbed
    assert all(row[:3] == (3, 0, 0) for row in counted(stage))
    accepted = [r for r in stage.players["pi"].receipts if (r.client, r.outcome) == (0, "accepted")]
    assert len(accepted) == 2


@pytest.mark.parametrize("lost", [{0}, {1, 2}, {0, 1, 2}])
def test_lost_chunks_are_asked_for_and_the_reply_counts_once(lost: set[int], stage: Stage, undisturbed: str) -> None:
    def lossy(player: Player, _: RoundMessage) -> None:
        parcel = player.pack(0)
        player.sent[parcel.blob.digest] = parcel
        player.send_chunks(parcel, [h for h in parcel.headers if h.index not in lost])

    stage.ways[0] = lossy
    stage.play()
    assert stage.sha256 == undisturbed
    assert counted(stage) == [(3, 0, 0, 0), (3, 0, 0, 0)]
    asked = [said for said in stage.players["pi"].inbox if isinstance(said, MissingMessage)]
    assert [said.round for said in asked] == [1, 2]


def test_the_last_chunk_alone_asks_for_the_rest(stage: Stage, undisturbed: str) -> None:
    """An agent without a receipt learns the outcome of its reply at once, or when the coordinator has restarted."""

    def probe(player: Player, _: RoundMessage) -> None:
        parcel = player.send(player.pack(0))
        player.send_chunks(parcel, parcel.headers[-1:])

    stage.ways[0] = probe
    stage.play()
    assert stage.sha256 == undisturbed
    assert counted(stage) == [(3, 0, 0, 1), (3, 0, 0, 1)]
    told = [(r.round, r.outcome) for r in stage.players["pi"].receipts if r.client == 0]
    assert told == [(1, "accepted"), (1, "duplicate"), (2, "accepted"), (2, "duplicate")]


def test_who_asks_after_a_refused_reply_is_told_again(stage: Stage, undisturbed: str) -> None:
    """If a receipt is lost, the agent needs another one: all its later replies wait for it."""

    def refused(player: Player, message: RoundMessage) -> None:
        if player.name == "pi" and message.round == 2:
            parcel = player.send(player.pack(0, run="another"))
            player.send_chunks(parcel, parcel.headers[-1:])

    stage.play(refused)
    assert stage.sha256 == undisturbed
    assert counted(stage) == [(3, 0, 0, 0), (3, 0, 1, 0)]
    told = [r for r in stage.players["pi"].receipts if r.outcome == "rejected"]
    assert [(r.client, r.round) for r in told] == [(0, 2), (0, 2)]
    assert all("names another run" in r.reason for r in told)


def test_many_transfers_at_once_cannot_fill_the_disk(stage: Stage, undisturbed: str) -> None:
    """The coordinator keeps only the newest few of a client's unfinished transfers."""
    most = 0

    def greedy(player: Player, message: RoundMessage) -> None:
        if player.name == "pi" and message.round == 2:
            for number in range(50):
                header = ChunkHeader(f"{number:064x}", 0, 3, 12_000)
                player.say(TOPICS.reply_chunk("pi", 0, 2, 0, 0), bytes(header.length), header.encode())

    def turn() -> bool:
        nonlocal most
        most = max(most, len(list((stage.folder / "blobs" / "partial").iterdir())))
        return stage.turn(greedy)

    stage.play_with(turn)
    assert stage.sha256 == undisturbed
    assert 0 < most <= 4
    assert counted(stage) == [(3, 0, 0, 0), (3, 0, 0, 0)]
