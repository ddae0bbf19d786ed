"""What the relay of a site does with replies that are damaged, foreign, too large or cannot be added up."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.hall import MODEL, Hall

from fedquilt_client import site_intake
from fedquilt_client.downloads import DISK_RESERVE
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.wire.chunks import Assembly, Blob
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.link import SMALLEST_LINK_PAYLOAD
from fedquilt_common.wire.messages import (
    MissingMessage,
    ReceiptMessage,
)

NAN = {"w": np.full(600, np.nan, np.float32)}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda hall: hall.reply(3, NAN),
        lambda hall: hall.reply(3, client=2),
        lambda hall: hall.reply(3, round=9),
        lambda hall: hall.reply(3, task="0" * 16),
        lambda hall: write_arrays(hall.folder / "bare", MODEL),
    ],
    ids=["not finite", "another client", "another round", "another task", "no header"],
)
def test_what_cannot_be_added_up_travels_alone_and_spoils_no_sum(hall: Hall, spoil: Callable[[Hall], Blob]) -> None:
    hall.open()
    hall.send("c", 3, spoil(hall))
    assert hall.taken() == [[3]]
    hall.answer("rejected", reason="wrong")
    assert hall.told("c") == [("rejected", 3, True)]
    for client, board in ((0, "a"), (1, "a"), (2, "b")):
        hall.send(board, client)
    assert hall.taken() == [[0, 1, 2]]


def test_replies_of_other_arrays_travel_alone(hall: Hall) -> None:
    hall.open()
    hall.send("c", 3, hall.reply(3, {"v": MODEL["w"]}))
    for client, board in ((0, "a"), (1, "a"), (2, "b")):
        hall.send(board, client)
    assert sorted(hall.taken()) == [[0], [1], [2], [3]]


def test_a_board_cannot_send_for_another_one(hall: Hall) -> None:
    hall.open()
    hall.send("c", 2)
    hall.send("nobody", 2)
    hall.send("c", 4)
    assert hall.told("c") == [("rejected", 2, False), ("rejected", 4, False)]
    assert hall.told("nobody") == [("rejected", 2, False)]
    hall.send("c", 2, hall.sum([2, 3]))
    hall.send("b", 2, hall.sum([2, 3]))
    assert hall.told("c") == [("rejected", 2, False)]
    (receipt,) = hall.line.inboxes["b"]
    assert isinstance(receipt, ReceiptMessage)
    assert (receipt.outcome, receipt.members, receipt.final) == ("rejected", [3], True)
    assert "agent b does not host them" in receipt.reason
    hall.send_all()
    assert hall.taken() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("chunk", [1000, 10**6], ids=["many chunks", "one chunk"])
def test_a_full_disk_refuses_a_reply_for_now(hall: Hall, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    hall.open()
    with monkeypatch.context() as patched:
        patched.setattr(site_intake.SiteIntake, "_write", fail)
        patched.setattr(Assembly, "_write", fail)
        hall.send("b", 2, chunk=chunk)
    assert {(outcome, final) for outcome, _, final in hall.told("b")} == {("rejected", False)}
    hall.send_all()
    assert hall.taken() == [[0, 1, 2, 3]]


def test_unfinished_replies_have_their_room(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.open()
    size = hall.reply(2).size
    free = SimpleNamespace(free=DISK_RESERVE + size + 500)  # a chunk of 1000 is missing of the first
    monkeypatch.setattr("fedquilt_client.site_intake.psutil.disk_usage", lambda _: free)
    hall.send("a", 0, chunk=1000, skip=0)
    hall.send("b", 2)
    told = hall.line.inboxes["b"][-1]
    assert isinstance(told, ReceiptMessage)
    assert "has no room" in told.reason


@pytest.mark.parametrize("complete", [False, True])
def test_a_restarted_relay_goes_on_with_what_it_has(hall: Hall, complete: bool) -> None:
    hall.open()
    hall.send("a", 0, hall.sum([0, 1]))
    hall.send("b", 2)
    before = hall.send("c", 3) if complete else None
    sent = hall.line.sent
    hall.start()
    hall.open()
    if before is None:
        assert hall.line.sent == sent == []
        hall.send("c", 3)
    (first,) = hall.line.sent
    if complete:
        assert [first] == sent
    assert hall.taken() == [[0, 1, 2, 3]]
    hall.answer("duplicate", [0, 1, 2, 3])
    assert [hall.told(board) for board in "abc"] == [[("duplicate", c, True)] for c in (0, 2, 3)]


def test_a_damaged_copy_comes_again_from_its_board(hall: Hall) -> None:
    hall.open()
    hall.send("a", 0)
    hall.send("a", 1)
    hall.send("b", 2)
    (path,) = hall.run.store.folder.glob("clients/2/reply-*")
    hall.start()
    path.write_bytes(bytes(path.stat().st_size))
    hall.open()
    hall.send("c", 3)
    (receipt,) = hall.line.inboxes["b"]
    assert isinstance(receipt, ReceiptMessage)
    assert (receipt.damaged, receipt.final) == (True, False)
    hall.send("b", 2)
    assert sorted(hall.taken()) in ([[0, 1, 3], [2]], [[0, 1, 2, 3]])


def test_lost_chunks_are_requested_and_damaged_ones_refused(hall: Hall) -> None:
    hall.open()
    blob = hall.send("b", 2, chunk=1000, skip=1)
    (request,) = hall.line.inboxes.pop("b")
    assert isinstance(request, MissingMessage)
    assert request.bitmap == "Ag=="
    hall.send("b", 2, blob, chunk=1000)
    assert not hall.line.inboxes
    damaged = hall.reply(3)
    content = bytearray(damaged.path.read_bytes())
    content[-1] ^= 1
    damaged.path.write_bytes(content)
    hall.send("c", 3, damaged)
    hall.send("c", 3, damaged, chunk=1000)
    assert hall.told("c") == [("rejected", 3, False)] * 2


def test_a_reply_that_is_too_large_takes_no_disk(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_intake, "LARGEST_SHARE", 0)
    monkeypatch.setattr(site_intake, "LARGEST_REST", 1000)
    hall.open()
    hall.send("b", 2, chunk=1000)
    assert {(outcome, final) for outcome, _, final in hall.told("b")} == {("rejected", False)}
    monkeypatch.setattr(site_intake, "LARGEST_REST", 10**6)
    monkeypatch.setattr(site_intake, "DISK_RESERVE", 1 << 60)
    hall.send("b", 2, chunk=1000)
    assert all(isinstance(one, ReceiptMessage) and "has no room" in one.reason for one in hall.line.inboxes["b"])
    assert not list(hall.run.store.folder.glob("drafts/*"))


def test_a_reply_in_tiny_chunks_takes_no_memory(hall: Hall) -> None:
    """The relay remembers which chunks of an unfinished reply have arrived."""
    hall.open()
    blob = hall.send("b", 2, chunk=7)
    assert {(outcome, final) for outcome, _, final in hall.told("b")} == {("rejected", False)}
    assert not list(hall.run.store.folder.glob("drafts/*"))
    hall.send("b", 2, blob, chunk=SMALLEST_LINK_PAYLOAD)
    hall.send("a", 0)
    hall.send("a", 1)
    hall.send("c", 3)
    assert hall.taken() == [[0, 1, 2, 3]]


def test_the_seal_of_a_sum_for_unknown_clients_is_not_added_up(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding it up, and finding out who is wrong, takes seconds for a few hundred bytes."""
    monkeypatch.setattr(PartialSum, "check_members", lambda _: pytest.fail("the seal was checked"))
    hall.open()
    hall.send("b", 2, hall.sum([2, *range(10, 20)]))
    (receipt,) = hall.line.inboxes["b"]
    assert isinstance(receipt, ReceiptMessage)
    assert receipt.members == list(range(10, 20))
