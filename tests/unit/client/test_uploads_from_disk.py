"""Replies on their way whose files are damaged, deleted or cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.client.test_uploads import CHUNKS, Bench

from fedquilt_client.uploads import READINGS
from fedquilt_common.wire.repairs import LAST_PROBE_SECONDS, SHORTEST_PROBE_SECONDS


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_reply_that_is_damaged_on_the_disk_is_not_sent_again(bench: Bench) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply, intact=True)
    bench.line.take()
    (bench.folder / reply.file).write_bytes(b"rotten")
    bench.receipt(reply, "rejected", damaged=True, final=False)
    assert (bench.lost, bench.line.take(), bench.uploads.busy) == ([reply], [], False)


def test_a_stored_reply_is_checked_before_it_is_sent(bench: Bench) -> None:
    damaged, deleted, whole = bench.reply(0), bench.reply(1), bench.reply(2)
    (bench.folder / damaged.file).write_bytes(b"rotten")
    (bench.folder / deleted.file).unlink()
    for reply in (damaged, deleted, whole):
        bench.uploads.offer(reply)
    assert bench.lost == [damaged, deleted]
    assert bench.line.sent == [(2, 1, 0, chunk) for chunk in range(CHUNKS)]


def make_unreadable(path: Path) -> bytes:
    """Put a folder in the place of a file: this fails for root, too. Returns what the file held."""
    before = path.read_bytes()
    path.unlink()
    path.mkdir()
    return before


def test_a_reply_that_cannot_be_read_lets_others_pass_and_is_sent_when_it_can(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reply, other = bench.reply(0), bench.reply(1)
    path = bench.folder / reply.file
    before = make_unreadable(path)
    bench.uploads.offer(reply, intact=True)
    bench.uploads.offer(other)
    assert bench.line.sent == [(1, 1, 0, chunk) for chunk in range(CHUNKS)]
    assert f"{path} cannot be read: Is a directory" in caplog.text
    path.rmdir()
    path.write_bytes(before)
    bench.receipt(other)
    bench.line.take()
    assert bench.later(SHORTEST_PROBE_SECONDS) == list(range(CHUNKS))
    assert bench.receipt(reply) == reply
    assert bench.lost == []


def test_a_reply_that_is_lost_while_it_is_sent_is_trained_again(bench: Bench) -> None:
    reply = bench.reply()
    bench.uploads.offer(reply)
    bench.line.take()
    (bench.folder / reply.file).unlink()
    bench.missing(reply, {0, 2})
    assert bench.later(SHORTEST_PROBE_SECONDS) == []
    assert (bench.lost, bench.uploads.busy) == ([reply], False)


def test_a_reply_that_can_never_be_read_is_trained_again(bench: Bench) -> None:
    reply = bench.reply()
    make_unreadable(bench.folder / reply.file)
    bench.uploads.offer(reply)
    for _ in range(READINGS):
        bench.later(LAST_PROBE_SECONDS)
    assert (bench.lost, bench.uploads.busy) == ([reply], False)
