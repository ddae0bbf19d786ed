"""The relay of a site: which replies of boards it adds up and sends, and what it answers the boards."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.hall import MODEL, Hall

from fedquilt_client import site_replies, site_run
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.messages import (
    FailedMessage,
    MissingMessage,
    ReceiptMessage,
)

ACCEPTED = {"a": [("accepted", 0, True), ("accepted", 1, True)], "b": [("accepted", 2, True)]}


def test_all_replies_of_a_site_travel_as_one_sum_and_each_board_gets_its_receipts(hall: Hall) -> None:
    hall.open()
    for client, board in ((2, "b"), (1, "a"), (3, "c")):
        hall.send(board, client)
        assert hall.taken() == []
    hall.send("a", 0)
    assert hall.taken() == [[0, 1, 2, 3]]
    assert not hall.line.inboxes
    hall.answer("accepted", [0, 1, 2, 3])
    assert {board: sorted(hall.told(board), key=lambda one: one[1]) for board in "ab"} == ACCEPTED
    assert hall.told("c") == [("accepted", 3, True)]


def test_a_sum_is_that_of_its_replies_to_the_bit(hall: Hall, tmp_path: Path) -> None:
    hall.open()
    hall.send("a", 0, hall.sum([0, 1]))
    hall.send("b", 2)
    hall.send("c", 3)
    ((_, payload, _),) = hall.line.sent
    assert payload == hall.sum([0, 1, 2, 3]).path.read_bytes()


def test_the_receipt_of_a_boards_sum_names_its_members(hall: Hall) -> None:
    hall.open()
    hall.send("a", 0, hall.sum([0, 1]))
    hall.send("b", 2)
    hall.send("c", 3)
    assert hall.taken() == [[0, 1, 2, 3]]
    hall.answer("accepted", [0, 1, 2, 3])
    (receipt,) = hall.line.inboxes["a"]
    assert isinstance(receipt, ReceiptMessage)
    assert (receipt.outcome, receipt.members) == ("accepted", [0, 1])


def test_a_member_that_counts_already_makes_the_board_send_a_sum_of_the_others(hall: Hall) -> None:
    hall.open()
    hall.send("a", 0, hall.sum([0, 1]))
    hall.send("b", 2)
    hall.send("c", 3)
    assert hall.taken() == [[0, 1, 2, 3]]
    hall.answer("duplicate", [1])
    assert hall.taken() == [[0, 1], [2, 3]]
    hall.answer("accepted", [2, 3])
    assert hall.told("b") == [("accepted", 2, True)]
    hall.last = (0, b"", hall.sum([0, 1]).headers(10**6)[0])
    hall.answer("duplicate", [1])
    assert hall.told("a") == [("duplicate", 0, True)]
    hall.send("a", 0)
    assert hall.taken() == [[0]]
    hall.answer("accepted")
    assert hall.told("a") == [("accepted", 0, True)]


def test_a_board_that_asks_again_gets_the_same_outcome(hall: Hall) -> None:
    hall.open()
    hall.send_all()
    assert hall.taken() == [[0, 1, 2, 3]]
    hall.answer("accepted", [0, 1, 2, 3])
    hall.line.inboxes.clear()
    hall.send("b", 2)
    assert hall.told("b") == [("duplicate", 2, True)]
    other = hall.reply(2, metrics={"loss": 0.5})
    hall.send("b", 2, other)
    assert hall.told("b") == [("duplicate", 2, True)]
    sent = hall.reply(2)
    hall.open(2)
    sent_before = hall.folder / "old"
    sent.path.replace(sent_before)
    hall.message = hall.message.model_copy(update={"round": 1})
    hall.send("b", 2, Blob(sent_before, sent.digest, sent.size))
    assert hall.told("b") == [("duplicate", 2, True)]


def test_tasks_that_do_not_allow_sums_are_forwarded_as_they_are(hall: Hall) -> None:
    hall.open(summed=False)
    blob = hall.send("a", 1)
    ((client, payload, header),) = hall.line.sent
    assert (client, payload, header.digest) == (1, blob.path.read_bytes(), blob.digest)
    assert hall.taken() == [[1]]
    hall.answer("rejected", reason="its arrays are wrong")
    (receipt,) = hall.line.inboxes["a"]
    assert isinstance(receipt, ReceiptMessage)
    assert (receipt.outcome, receipt.reason, receipt.final) == ("rejected", "its arrays are wrong", True)


def test_a_reply_to_another_task_waits_or_is_late(hall: Hall) -> None:
    hall.open(3)
    hall.message = hall.message.model_copy(update={"round": 4})
    hall.send("b", 2)
    hall.message = hall.message.model_copy(update={"round": 2})
    hall.send("b", 2)
    assert hall.told("b") == [("rejected", 2, False), ("late", 2, True)]


def test_what_the_coordinator_did_not_take_in_time_is_late(hall: Hall) -> None:
    hall.open()
    hall.send_all()
    assert hall.taken() == [[0, 1, 2, 3]]
    hall.open(2)
    assert {board: [one[0] for one in hall.told(board)] for board in "abc"} == {
        "a": ["late", "late"], "b": ["late"], "c": ["late"],
    }  # fmt: skip
    hall.send_all()
    assert hall.taken() == [[0, 1, 2, 3]]


def test_clients_that_fail_and_boards_that_leave_are_not_waited_for(hall: Hall) -> None:
    hall.open()
    hall.send("a", 0)
    hall.send("b", 2)
    hall.run.take_failure(FailedMessage(agent="b", run="run", client=1, round=1, exchange=0, reason="no host"))
    hall.run.take_failure(FailedMessage(agent="a", run="old", client=1, round=1, exchange=0, reason="old run"))
    hall.appear("c", (3,), online=False)
    hall.run.repair()
    assert hall.taken() == []
    hall.run.take_failure(FailedMessage(agent="a", run="run", client=1, round=1, exchange=0, reason="out of memory"))
    assert hall.taken() == [[0, 2]]
    hall.send("a", 1)
    assert hall.taken() == [[1]]


def test_replies_leave_before_the_deadline(hall: Hall) -> None:
    hall.open(deadline=time.time() - 1)
    hall.send("a", 0)
    assert hall.taken() == [[0]]


def test_a_clock_that_is_behind_does_not_hold_replies_beyond_the_deadline(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange has no more than the experiment's deadline, whatever the clock says is left."""
    longest = hall.experiment["participation"]["deadline"]
    now = time.time() - 3600
    monkeypatch.setattr("fedquilt_client.relay.time", SimpleNamespace(time=lambda: now, monotonic=lambda: now))
    hall.open(deadline=time.time() + longest)
    hall.send("a", 0)
    now += longest - 3
    hall.run.repair()
    assert hall.taken() == []
    now += 1
    hall.run.repair()
    assert hall.taken() == [[0]]


def test_clients_that_appear_later_are_waited_for(hall: Hall) -> None:
    hall.open()
    hall.run.add_clients("d", hall.appear("d", (4,)))
    hall.send_all()
    assert hall.taken() == []
    hall.send("d", 4)
    assert hall.taken() == [[0, 1, 2, 3, 4]]


def test_sums_wait_for_the_model(hall: Hall) -> None:
    hall.open(has_model=False)
    hall.send_all()
    assert hall.taken() == []
    hall.fetch(write_arrays(hall.folder / "model", MODEL))
    assert hall.taken() == [[0, 1, 2, 3]]


def test_a_board_with_many_clients_may_go_on_while_the_relay_waits(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent sends some replies only, before it waits for receipts; the relay waits for all of them."""
    monkeypatch.setattr(site_run, "TOGETHER", 2)
    hall.open()
    hall.send("a", 0)
    assert hall.told("a") == [("rejected", 0, False)]
    hall.send("a", 1)
    assert hall.told("a") == []
    hall.send("a", 0)
    assert hall.told("a") == []


def test_a_board_may_send_a_second_sum_while_the_relay_waits(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board sends a large sum alone. Naming its members tells the board not to give it up."""
    monkeypatch.setattr(site_run, "TOGETHER_BYTES", 1)
    hall.appear("a", (0, 1, 4))
    hall.open()
    first = hall.send("a", 0, hall.sum([0, 1]))
    hall.send("a", 0, first)
    waiting = hall.line.inboxes.pop("a")
    assert [(one.outcome, one.final, one.members) for one in waiting if isinstance(one, ReceiptMessage)] == [
        ("rejected", False, [0, 1])
    ] * 2
    hall.send("a", 4)
    hall.send("a", 0, first)
    assert hall.told("a") == []
    hall.send("b", 2)
    hall.send("c", 3)
    assert hall.taken() == [[0, 1, 2, 3, 4]]


def test_the_coordinator_may_ask_for_chunks_and_a_receipt_of_another_run_is_ignored(hall: Hall) -> None:
    hall.open()
    hall.send_all()
    assert hall.taken() == [[0, 1, 2, 3]]
    hall.answer("accepted", [0, 1, 2, 3], run="other")
    assert not hall.line.inboxes
    assert hall.last is not None
    client, _, header = hall.last
    hall.run.take_inbox(
        MissingMessage(run="run", client=client, round=1, exchange=0, digest=header.digest, bitmap="AQ==")
    )
    assert hall.taken() == [[0, 1, 2, 3]]


def test_only_some_refused_replies_are_remembered(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_replies, "REFUSED_KEPT", 2)
    hall.open(summed=False)
    for number in range(4):
        hall.send("a", 0, hall.reply(0, weight=10.0 + number))
        assert hall.taken() == [[0]]
        hall.answer("rejected")
    hall.line.inboxes.clear()
    hall.send("a", 0, hall.reply(0, weight=12.0))
    assert (hall.taken(), hall.told("a")) == ([], [("rejected", 0, True)]), "it is remembered"
    hall.send("a", 0, hall.reply(0, weight=10.0))
    assert hall.taken() == [[0]], "it is forgotten, so the coordinator decides again"
    hall.answer("rejected")
    hall.send("a", 0)
    assert hall.taken() == [[0]]
    hall.answer("accepted")
    assert hall.told("a") == [("rejected", 0, True), ("accepted", 0, True)]


def test_only_a_restarted_coordinator_goes_back(hall: Hall) -> None:
    hall.open(2)
    hall.open(3)
    hall.open(2)
    assert hall.run.round is not None
    assert hall.run.round.round == 3
    hall.run.greet_coordinator()
    hall.open(2)
    assert hall.run.round.round == 2
