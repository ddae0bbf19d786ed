"""Malformed messages, and messages of another version: after them the agent still does the next valid task."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agents import plus, same

from fedquilt_common.wire.message_base import PROTOCOL
from fedquilt_common.wire.messages import (
    CoordinatorPresence,
    MissingMessage,
    ReceiptMessage,
    StopMessage,
)
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]


NEWER = PROTOCOL + 1


def test_a_newer_protocol_is_ignored_with_advice(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fedquilt_client")
    peer.publish(peer.topics.run, kit.run().model_copy(update={"v": NEWER, "run": "future"}))
    with host():
        wait_for(lambda: "install the same fedquilt version" in caplog.text, "the advice")
        assert f"has protocol version {NEWER}" in caplog.text
        peer.publish(peer.topics.run, kit.run())
        peer.open("run-1", 1, kit.blob(), [0])
        assert same(peer.reply(0, 1), plus(0.5, kit))


NOBODY = "0" * 64
HOSTILE: dict[str, list[bytes]] = {
    "run": [
        b"not json", b"[1]", b"{}", b'{"v":1}', b"\xff\xfe", b"[" * 100_000, b'{"v":true}', b'{"v":"1"}', b'{"v":-1}',
        b'{"v":1,"run":"../../etc","experiment":{}}', b'{"v":1,"run":"x","experiment":{}}',
        b'{"v":1,"run":"x","experiment":{"name":"x","rounds":NaN}}',
    ],
    "round": [
        b'{"v":1,"run":"run-1","round":-1,"exchange":0}',
        b'{"v":1,"run":"run-1","round":1e400,"exchange":0}',
        RoundMessage(run="run-1", round=1, exchange=0,
                     tasks=[TaskMessage(clients=[0], kind="train", patches=[])]
                     ).encode().replace(b'"patches":[],"scalars"', b'"patches":[7],"scalars"'),
        RoundMessage(run="run-1", round=1, exchange=0,
                     patches=[PatchMessage(slot=0, digest=NOBODY, size=0), PatchMessage(slot=0, digest=NOBODY, size=9)],
                     tasks=[TaskMessage(clients=[0, 0, 1], kind="train", patches=[1, 0, 1])]).encode(),
    ],
    "inbox": [
        b"", b"{", b'{"v":1,"type":"unknown"}', b'{"v":1,"type":"receipt"}',
        StopMessage(run="run-1", clients=[0], round=9, exchange=0).encode(),
        ReceiptMessage(run="run-1", client=0, round=1, exchange=0, digest=NOBODY, outcome="rejected").encode(),
        MissingMessage(run="run-1", client=0, round=1, exchange=0, digest=NOBODY, bitmap="AAAA").encode(),
    ],
    "coordinator": [b"{}", b'{"v":1,"online":1,"epoch":"x"}', CoordinatorPresence(online=False, epoch=0).encode()],
    "end": [b"0", b'{"v":1,"run":"x"}'],
    "slice": [b"x", b"y" * 5000],
}  # fmt: skip


def test_hostile_words_do_no_harm(peer: Peer, host: Host, kit: Kit) -> None:
    """After malformed messages of each kind the agent still does the next valid task."""
    topics = peer.topics
    places = {"run": topics.run, "round": topics.round, "coordinator": topics.coordinator, "end": topics.end,
              "inbox": topics.inbox("board"), "slice": topics.slot_chunk("slices/0", 0)}  # fmt: skip
    peer.publish(topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1)
        for number, (kind, payloads) in enumerate(HOSTILE.items(), 2):
            for payload in payloads:
                for header in (b"", b"\0" * 49, b"\x01" + b"\xee" * 48):
                    peer.publish(places[kind], payload, header=header, retain=False)
            peer.open("run-1", number, kit.blob(), [0])
            assert same(peer.reply(0, number), plus(0.5, kit)), kind


def test_a_reply_with_wrong_missing_bitmap_is_kept(peer: Peer, host: Host, kit: Kit) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1, accept=False)
        digest = peer.chunks(0, 1)[0][0].digest
        for bitmap in ("", "AAAAAAAAAAAA", "////////"):
            peer.send_to(
                "board", MissingMessage(run="run-1", client=0, round=1, exchange=0, digest=digest, bitmap=bitmap)
            )
        peer.accept(0, 1)
        peer.open("run-1", 2, kit.blob(), [0])
        assert same(peer.reply(0, 2), plus(0.5, kit))
    assert len(peer.chunks(0, 1)) == peer.chunks(0, 1)[0][0].count
