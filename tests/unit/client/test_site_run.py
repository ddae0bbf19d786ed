"""The relay of a site: which replies of boards it takes, adds up and sends, and what it answers the boards."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedquilt_client import site_intake, site_run
from fedquilt_client.downloads import DISK_RESERVE
from fedquilt_client.site_boards import SiteBoards
from fedquilt_client.site_run import SiteRun
from fedquilt_client.store import AgentStore
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum, write_partial_sum
from fedquilt_common.wire.chunks import Assembly, Blob, ChunkHeader
from fedquilt_common.wire.codec import BytesArrays, write_arrays
from fedquilt_common.wire.messages import (
    REPLY_KEY,
    AgentPresence,
    FailedMessage,
    MissingMessage,
    ReceiptMessage,
    ReplyHeader,
    RunMessage,
    SumHeader,
)
from fedquilt_common.wire.parsing import parse_inbox
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage, Transport
from fedquilt_server.tools.bench import bench_experiment

TOPICS = Topics("lab")
RELAY = "hall-relay"
MODEL = {"w": np.linspace(-1, 1, 600, dtype=np.float32)}
BOARDS = {"a": (0, 1), "b": (2,), "c": (3,)}


class Line:
    """A transport that keeps what is sent: to the coordinator, and to each board."""

    max_payload = 10**6

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, ChunkHeader]] = []
        self.inboxes: dict[str, list[ReceiptMessage | MissingMessage]] = {}

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        address = TOPICS.parse(topic)
        if address.kind == "replies":
            assert address.agent == RELAY
            self.sent.append((address.client, payload, ChunkHeader.decode(header)))
        else:
            found = parse_inbox(payload, topic)
            assert isinstance(found, ReceiptMessage | MissingMessage)
            self.inboxes.setdefault(address.agent, []).append(found)
        return True

    def drain(self, timeout: float) -> bool:
        return True

    def subscribe(self, filters: Sequence[str]) -> None:
        pass

    unsubscribe = subscribe


class Hall:
    """A relay's run, three boards behind its site, and a coordinator that the test plays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.experiment = bench_experiment(3, 4, 0.01, 2, relay=True).model_dump(mode="json")
        self.message = RoundMessage(run="run", round=1, exchange=0)
        self.start()

    def start(self) -> None:
        """Start the relay, as after a kill."""
        self.line, self.boards = Line(), SiteBoards("hall")
        for name, clients in BOARDS.items():
            self.appear(name, clients)
        self.store = AgentStore(self.folder / "state")
        store = self.store.open_run(RunMessage(run="run", experiment=self.experiment))
        self.store.release()
        self.run = SiteRun(RELAY, store, self.boards, cast(Transport, self.line), TOPICS)

    def appear(self, name: str, clients: Sequence[int], *, online: bool = True) -> set[int]:
        here = AgentPresence(agent=name, online=online, boot=1, clients=list(clients), site="hall")
        return self.boards.take(here)

    def open(
        self, number: int = 1, *, summed: bool = True, deadline: float | None = None, has_model: bool = True
    ) -> None:
        """Publish a manifest, and let the relay have the model."""
        blob = write_arrays(self.folder / "model", MODEL)
        patch = PatchMessage(slot=0, digest=blob.digest, size=blob.size)
        task = TaskMessage(clients=list(range(5)), kind="train", patches=[0], summed=summed)
        self.message = RoundMessage(
            run="run", round=number, exchange=0, deadline=deadline, patches=[patch], tasks=[task]
        )
        self.run.open_round(self.message, retained=False)
        if has_model:
            self.fetch(blob)

    def fetch(self, blob: Blob) -> None:
        (header,) = blob.headers(10**6)
        topic = TOPICS.slot_chunk("slices/0", 0)
        message = MqttMessage(topic, blob.path.read_bytes(), header.encode(), True, lambda: None)
        self.run.take_patch(TOPICS.parse(topic), message)

    def fingerprint(self, client: int) -> str:
        return self.message.fingerprint(self.message.tasks[0], client)

    def reply(self, client: int, arrays: dict[str, Any] | None = None, /, **changes: Any) -> Blob:
        known = {"run": "run", "round": self.message.round, "exchange": 0, "client": client,
                 "task": self.fingerprint(client), "weight": 1.0 + client, "metrics": {"loss": client / 7}}  # fmt: skip
        header = ReplyHeader.model_validate({**known, **changes})
        arrays = arrays or {"w": MODEL["w"] + np.float32(client + 1)}
        path = self.folder / f"reply-{client}"
        return write_arrays(path, arrays, "fp32", {REPLY_KEY: header.model_dump_json()})

    def sum(self, clients: Sequence[int]) -> Blob:
        members = [SumMember(c, self.fingerprint(c), 1.0 + c, {"loss": c / 7}) for c in clients]
        header = SumHeader(run="run", round=self.message.round, exchange=0, base=self.message.patches[0].digest)
        arrays = [{"w": MODEL["w"] + np.float32(client + 1)} for client in clients]
        return write_partial_sum(self.folder / "sum", header, members, arrays, MODEL)

    def send(self, board: str, client: int, blob: Blob | None = None, chunk: int = 10**6, skip: int = -1) -> Blob:
        """Send a reply of a board in chunks, without one of them."""
        blob = blob or self.reply(client)
        content = blob.path.read_bytes()
        for header in blob.headers(chunk):
            if header.index != skip:
                part = content[header.offset : header.offset + header.length]
                topic = TOPICS.reply_chunk(board, client, self.message.round, 0, header.index)
                message = MqttMessage(topic, part, header.encode(), False, lambda: None)
                self.run.take_reply(TOPICS.parse(topic), message)
        return blob

    def send_all(self) -> None:
        for board, clients in BOARDS.items():
            for client in clients:
                self.send(board, client)

    def taken(self) -> list[list[int]]:
        """Return whose replies have reached the coordinator since the last call: those of a sum together."""
        sent, self.line.sent = self.line.sent, []
        self.last = sent[-1] if sent else None
        return [self.members(payload) or [client] for client, payload, _ in sent]

    def members(self, payload: bytes) -> list[int]:
        one = PartialSum(BytesArrays(payload))
        return [member.client for member in one.members] if "members" in one.content else []

    def answer(self, outcome: str, members: Sequence[int] = (), **changes: Any) -> None:
        """Send the coordinator's receipt of the last transfer."""
        assert self.last is not None
        client, _, header = self.last
        known = {"run": "run", "client": client, "round": self.message.round, "exchange": 0, "digest": header.digest}
        self.run.take_inbox(
            ReceiptMessage.model_validate({**known, "outcome": outcome, "members": list(members), **changes})
        )

    def told(self, board: str) -> list[tuple[str, int, bool]]:
        """Return outcome, client and whether it is final of the receipts that a board got since the last call."""
        found = self.line.inboxes.pop(board, [])
        return [(one.outcome, one.client, one.final) for one in found if isinstance(one, ReceiptMessage)]


@pytest.fixture
def hall(tmp_path: Path) -> Hall:
    return Hall(tmp_path)


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
    monkeypatch.setattr("fedquilt_client.relay.time", SimpleNamespace(time=lambda: now))
    hall.open(deadline=time.time() + longest)
    hall.send("a", 0)
    now += longest - 3
    hall.run.repair()
    assert hall.taken() == []
    now += 1
    hall.run.repair()
    assert hall.taken() == [[0]]


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


def test_clients_that_appear_later_are_waited_for(hall: Hall) -> None:
    hall.open()
    hall.run.meet(hall.appear("d", (4,)))
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


def test_only_a_restarted_coordinator_goes_back(hall: Hall) -> None:
    hall.open(2)
    hall.open(3)
    hall.open(2)
    assert hall.run.round is not None
    assert hall.run.round.round == 3
    hall.run.greet_coordinator()
    hall.open(2)
    assert hall.run.round.round == 2
