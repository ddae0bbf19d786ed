"""Replies on their way: together or alone, asked after, and sent again where something is missing."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedquilt_client import uploads as module
from fedquilt_client.records import StoredReply
from fedquilt_client.uploads import DAMAGES, Uploads
from fedquilt_common.errors import PayloadError
from fedquilt_common.files.digests import digest_file
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.chunks import Blob, ChunkHeader
from fedquilt_common.wire.messages import MissingMessage, Outcome, ReceiptMessage
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.repairs import FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS, SHORTEST_PROBE_SECONDS
from fedquilt_common.wire.topics import Topics

CHUNKS = 4
TOPICS = Topics("test")


class Line:
    """A transport that notes what is sent; it can be cut after some more publications."""

    max_payload = 1000

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int, int]] = []
        self.room = 10**6
        self.idle = True

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        if not self.room:
            return False
        self.room -= 1
        address, chunk = TOPICS.parse(topic), ChunkHeader.decode(header)
        assert (address.kind, address.agent, retain) == ("replies", "board", False)
        assert chunk.index == address.chunk
        assert payload == content(address.client, address.round)[chunk.offset : chunk.offset + chunk.length]
        self.sent.append((address.client, address.round, address.exchange, address.chunk))
        return True

    def drain(self, timeout: float) -> bool:
        return self.idle

    def take(self) -> list[int]:
        """The chunk numbers sent since the last call."""
        numbers, self.sent = [chunk for *_, chunk in self.sent], []
        return numbers


def content(client: int, number: int) -> bytes:
    return b"%d of %d " % (client, number) * 500


class Bench:
    """Uploads with a clock in the test's hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.line = Line()
        as_transport: MqttTransport = self.line  # type: ignore[assignment]  # the part of it that is used
        self.lost: list[StoredReply] = []
        self.uploads = Uploads("board", as_transport, TOPICS, self.blob, self.lost.append, 10**6)

    def blob(self, reply: StoredReply) -> Blob:
        return Blob(self.folder / reply.file, reply.digest, reply.size)

    def reply(self, client: int = 0, number: int = 1) -> StoredReply:
        path = self.folder / f"{client}-{number}"
        path.write_bytes(content(client, number))
        task = f"task-{number}"
        return StoredReply("run", client, number, 0, task, path.name, digest_file(path, "xxh3"), path.stat().st_size)

    def receipt(
        self, reply: StoredReply, outcome: Outcome = "accepted", *, damaged: bool = False, final: bool = True
    ) -> StoredReply | None:
        ids = {"run": "run", "client": reply.client, "round": reply.round, "exchange": 0, "digest": reply.digest}
        receipt = {**ids, "outcome": outcome, "damaged": damaged, "final": final}
        return self.uploads.take_receipt(ReceiptMessage.model_validate(receipt))

    def missing(self, reply: StoredReply, indices: set[int]) -> None:
        self.miss(reply, encode_bitmap(indices, CHUNKS))

    def miss(self, reply: StoredReply, bitmap: str) -> None:
        fields = {"run": "run", "client": reply.client, "round": reply.round, "exchange": 0}
        self.uploads.send_missing(MissingMessage.model_validate({**fields, "digest": reply.digest, "bitmap": bitmap}))

    def later(self, seconds: float) -> list[int]:
        """What is sent when so much time has passed."""
        self.now += seconds
        self.uploads.advance()
        return self.line.take()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """These replies are too large to be sent together."""
    monkeypatch.setattr(module, "TOGETHER_BYTES", 5000)


def test_small_replies_are_sent_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOGETHER", 2)
    first, second, third = (bench.reply(client) for client in range(3))
    for reply in (first, second, third):
        bench.uploads.offer(reply)
    assert bench.line.sent == [(client, 1, 0, chunk) for client in (0, 1) for chunk in range(CHUNKS)]
    bench.line.take()
    assert bench.receipt(second) == second
    assert bench.line.sent == [(2, 1, 0, chunk) for chunk in range(CHUNKS)]
    bench.line.take()
    assert bench.later(FIRST_PROBE_SECONDS) == [CHUNKS - 1, CHUNKS - 1]
    assert [bench.receipt(first), bench.receipt(third), bench.receipt(third)] == [first, third, None]
    assert not bench.uploads.busy


@pytest.mark.usefixtures("alone")
def test_large_replies_are_sent_one_at_a_time(bench: Bench) -> None:
    first, second = bench.reply(0), bench.reply(1)
    bench.uploads.offer(first)
    bench.uploads.offer(second)
    assert bench.line.sent == [(0, 1, 0, chunk) for chunk in range(CHUNKS)]
    bench.line.take()
    assert bench.receipt(first) == first
    assert bench.line.sent == [(1, 1, 0, chunk) for chunk in range(CHUNKS)]
    assert bench.uploads.busy
    assert bench.receipt(second) == second
    assert not bench.uploads.busy


@pytest.mark.parametrize("outcome", ["accepted", "duplicate", "late", "rejected"])
def test_every_verdict_settles_a_reply(bench: Bench, outcome: Outcome) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply)
    assert bench.receipt(reply, outcome) == reply
    bench.line.take()
    bench.uploads.offer(reply)
    assert bench.later(1000) == []


def test_what_is_offered_twice_is_sent_once(bench: Bench) -> None:
    first, second = bench.reply(0), bench.reply(1)
    for reply in (first, first, second, second, first):
        bench.uploads.offer(reply)
    bench.receipt(first)
    assert len(bench.line.take()) == 2 * CHUNKS
    bench.receipt(second)
    assert not bench.uploads.busy


def test_without_a_receipt_the_last_chunk_asks_less_and_less_often(bench: Bench) -> None:
    bench.uploads.offer(bench.reply())
    bench.line.take()
    pause = FIRST_PROBE_SECONDS
    for _ in range(8):
        assert bench.later(pause - 0.01) == []
        assert bench.later(0.02) == [CHUNKS - 1]
        pause = min(2 * pause, LAST_PROBE_SECONDS)
    assert pause == LAST_PROBE_SECONDS


def test_nobody_asks_while_a_slow_link_is_still_sending(bench: Bench) -> None:
    bench.uploads.offer(bench.reply())
    bench.line.take()
    bench.line.idle = False
    assert bench.later(100) == []
    bench.line.idle = True
    assert bench.later(0) == [CHUNKS - 1]


def test_who_is_back_is_asked_at_once(bench: Bench) -> None:
    bench.uploads.probe_now()
    bench.uploads.offer(bench.reply())
    bench.later(3)
    bench.later(6)
    bench.uploads.probe_now()
    assert bench.line.take() == [CHUNKS - 1]
    assert bench.later(FIRST_PROBE_SECONDS) == [CHUNKS - 1]


def test_exactly_the_missing_chunks_are_sent(bench: Bench) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply)
    bench.line.take()
    bench.now += 2
    bench.missing(reply, {0, 2})
    assert bench.line.take() == [0, 2]
    assert bench.later(2) == []  # asking again waits from there
    assert bench.later(1) == [CHUNKS - 1]


@pytest.mark.parametrize("bitmap", ["", "AAAA", "////"])
def test_a_wrong_bitmap_is_refused(bench: Bench, bitmap: str) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply)
    bench.line.take()
    with pytest.raises(PayloadError, match="bitmap"):
        bench.miss(reply, bitmap)
    assert bench.line.take() == []
    assert bench.receipt(reply) == reply


@pytest.mark.usefixtures("alone")
def test_words_about_other_replies_change_nothing(bench: Bench) -> None:
    reply, waiting, other = bench.reply(0), bench.reply(1), bench.reply(2)
    assert bench.receipt(reply) is None
    bench.uploads.offer(reply)
    bench.uploads.offer(waiting)
    bench.line.take()
    for stranger in (waiting, other):
        assert bench.receipt(stranger) is None
        bench.missing(stranger, {0})
    assert bench.line.take() == []
    assert bench.receipt(reply) == reply
    assert bench.receipt(reply) is None
    assert len(bench.line.take()) == CHUNKS


def test_a_cut_line_is_tried_again_from_the_start(bench: Bench) -> None:
    bench.line.room = 2
    bench.uploads.offer(bench.reply())
    assert bench.line.take() == [0, 1]
    assert bench.later(FIRST_PROBE_SECONDS) == []
    bench.line.room = 100
    bench.uploads.probe_now()
    assert bench.line.take() == list(range(CHUNKS))
    assert bench.later(FIRST_PROBE_SECONDS) == [CHUNKS - 1]


def test_a_new_exchange_drops_what_has_not_been_sent(bench: Bench) -> None:
    bench.line.room = 1
    for client in range(3):
        bench.uploads.offer(bench.reply(client))
    bench.line.take()
    bench.uploads.review(lambda reply: reply.round == 2)
    bench.line.room = 100
    assert not bench.uploads.busy
    assert bench.later(1000) == []
    bench.uploads.offer(bench.reply(0, 2))
    assert bench.line.take() == list(range(CHUNKS))


@pytest.mark.usefixtures("alone")
def test_a_new_exchange_still_asks_what_became_of_a_sent_reply(bench: Bench) -> None:
    sent, dropped, kept = bench.reply(0, 1), bench.reply(1, 1), bench.reply(2, 2)
    for reply in (sent, dropped, kept):
        bench.uploads.offer(reply)
    bench.line.take()
    bench.uploads.review(lambda reply: reply.round == 2)
    assert bench.later(FIRST_PROBE_SECONDS) == [CHUNKS - 1]
    assert bench.receipt(sent, "late") == sent
    assert bench.line.sent == [(2, 2, 0, chunk) for chunk in range(CHUNKS)]


def test_an_unsent_reply_gives_way_to_the_next(bench: Bench) -> None:
    bench.line.room = 0
    bench.uploads.offer(bench.reply(0, 1))
    bench.uploads.offer(bench.reply(0, 2))
    bench.line.room = 100
    bench.uploads.review(lambda reply: reply.round == 2)
    assert bench.line.sent == [(0, 2, 0, chunk) for chunk in range(CHUNKS)]


def test_chunks_fit_the_broker_and_the_experiment(bench: Bench) -> None:
    bench.line.max_payload = 500
    bench.uploads.offer(bench.reply())
    assert len(bench.line.take()) == -(-bench.reply().size // 500)


@pytest.mark.usefixtures("alone")
def test_a_reply_that_arrives_damaged_is_sent_again_at_once_and_then_in_turn(bench: Bench) -> None:
    reply, other = bench.reply(0), bench.reply(1)
    bench.uploads.offer(reply)
    bench.uploads.offer(other)
    bench.line.take()
    for _ in range(DAMAGES):
        assert bench.receipt(reply, "rejected", damaged=True, final=False) is None
        assert bench.line.take() == list(range(CHUNKS))
    assert bench.receipt(reply, "rejected", damaged=True, final=False) is None
    assert bench.line.sent == [(1, 1, 0, chunk) for chunk in range(CHUNKS)]
    bench.receipt(other)
    bench.line.take()
    assert bench.later(SHORTEST_PROBE_SECONDS) == [CHUNKS - 1]
    assert bench.receipt(reply) == reply


def test_a_refusal_that_is_not_final_is_asked_about_again(bench: Bench) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply)
    bench.line.take()
    pause = SHORTEST_PROBE_SECONDS
    for _ in range(12):
        assert bench.receipt(reply, "rejected", final=False) is None
        assert bench.uploads.busy
        assert bench.later(0.99 * pause) == []
        assert bench.later(0.02 * pause) == [CHUNKS - 1]
        pause = min(2 * pause, LAST_PROBE_SECONDS)
    bench.missing(reply, {0, 1, 2})
    assert bench.line.take() == [0, 1, 2]
    assert bench.receipt(reply) == reply


def test_a_refusal_that_lasts_for_rounds_is_one_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A board that trains a client of another board should be told, but not in each round."""
    caplog.set_level(logging.INFO)
    for number in (1, 2, 3):
        reply = bench.reply(number=number)
        bench.uploads.offer(reply)
        for _ in range(2):
            bench.receipt(reply, "rejected", final=False)
            bench.later(LAST_PROBE_SECONDS)
        bench.uploads.review(lambda _: False)
    levels = [record.levelname for record in caplog.records if "offering it again" in record.getMessage()]
    assert levels == ["INFO"] * 2 + ["WARNING"] + ["INFO"] * 3
    for number in (4, 5):
        reply = bench.reply(number=number)
        bench.uploads.offer(reply)
        bench.receipt(reply, "rejected", final=False)
        assert bench.receipt(reply) == reply
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.usefixtures("alone")
def test_a_reply_that_is_refused_for_now_lets_others_pass(bench: Bench) -> None:
    refused, other = bench.reply(0), bench.reply(1)
    bench.uploads.offer(refused)
    bench.uploads.offer(other)
    bench.line.take()
    bench.receipt(refused, "rejected", final=False)
    assert bench.line.sent == [(1, 1, 0, chunk) for chunk in range(CHUNKS)]


def test_a_manifest_makes_a_refused_reply_due(bench: Bench) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply)
    for _ in range(8):
        bench.receipt(reply, "rejected", final=False)
        bench.later(LAST_PROBE_SECONDS)
    bench.receipt(reply, "rejected", final=False)
    bench.line.take()
    bench.uploads.review(lambda _: True)
    assert bench.line.take() == [CHUNKS - 1]
    bench.receipt(reply, "rejected", final=False)
    bench.uploads.review(lambda _: False)
    assert not bench.uploads.busy


@pytest.mark.parametrize("outcome", ["accepted", "rejected"])
def test_a_manifest_makes_a_settled_reply_an_open_question(bench: Bench, outcome: Outcome) -> None:
    """The coordinator may have lost it; its last chunk is enough to find out."""
    reply = bench.reply()
    bench.uploads.offer(reply)
    bench.receipt(reply, outcome)
    bench.line.take()
    bench.uploads.review(lambda _: True)
    bench.uploads.offer(reply)
    assert bench.line.take() == [CHUNKS - 1]
    bench.missing(reply, {0, 1, 2})
    assert bench.line.take() == [0, 1, 2]
    assert bench.receipt(reply) == reply
