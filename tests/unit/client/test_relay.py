"""A relay: which replies it adds up and when, what it does with receipts, and that a restart sends the same sum."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedquilt_client import relay as module
from fedquilt_client.current_run import CurrentRun
from fedquilt_client.records import StoredReply, name_reply
from fedquilt_client.relay import Relay, UploadOptions
from fedquilt_client.store import RunStore
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.codec import BytesArrays, write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReceiptMessage, ReplyHeader, RunMessage
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

TOPICS = Topics("test")
RUN = RunMessage(run="run", experiment={})
MODEL = {"w": np.linspace(-1, 1, 50, dtype=np.float32)}


class Line:
    """A transport that keeps what is sent."""

    max_payload = 10**6

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, str]] = []

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        self.sent.append((TOPICS.parse(topic).client, payload, ChunkHeader.decode(header).digest))
        return True

    def drain(self, timeout: float) -> bool:
        return True


class Bench:
    """A relay of five clients, their store, and a manifest."""

    def __init__(self, folder: Path) -> None:
        self.line = Line()
        self.damaged: list[StoredReply] = []
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start the agent, as after a kill."""
        self.store = RunStore(self.folder / "run", RUN)
        self.run = cast(CurrentRun, SimpleNamespace(round=None, given_up={}))
        options = UploadOptions(
            agent="board", transport=cast(Transport, self.line), topics=TOPICS, blob_of=self.store.blob, chunk=10**6,
            speedup=1.0,
        )  # fmt: skip
        self.relay = Relay(options, self.damaged.append, self.store, lambda: self.run, lambda: range(5))

    def open(self, clients: Sequence[int] = range(5), deadline: float | None = None, *, summed: bool = True) -> None:
        """Publish a manifest, and let the board have its model."""
        blob = write_arrays(self.folder / "model", MODEL)
        patch = PatchMessage(slot=0, digest=blob.digest, size=blob.size)
        task = TaskMessage(clients=list(clients), kind="train", patches=[0], summed=summed)
        self.run.round = RoundMessage(run="run", round=1, exchange=0, deadline=deadline, patches=[patch], tasks=[task])
        blob.path.replace(self.store.patch(blob.digest))
        self.relay.review(lambda reply: reply.client in clients)

    def reply(self, client: int, arrays: dict[str, Any] | None = None) -> StoredReply:
        """Return the stored reply of a client; it is the same at each call."""
        message = cast(RoundMessage, self.run.round)
        task = message.fingerprint(message.tasks[0], client)
        header = ReplyHeader(run="run", round=1, exchange=0, client=client, task=task, weight=1.0 + client,
                             metrics={"loss": client / 7})  # fmt: skip
        draft = self.folder / "draft"
        arrays = arrays or {"w": MODEL["w"] + np.float32(client)}
        blob = write_arrays(draft, arrays, "fp32", {REPLY_KEY: header.model_dump_json()})
        stored = StoredReply("run", client, 1, 0, task, name_reply(1, 0, task, blob.digest, 0), blob.digest, blob.size)
        home = self.store.folder / "clients" / str(client)
        home.mkdir(parents=True, exist_ok=True)
        draft.replace(home / stored.file)
        return stored

    def offer(self, clients: Iterable[int], *, intact: bool = True) -> None:
        for client in clients:
            self.relay.offer(self.reply(client), intact=intact)

    def take(self) -> list[list[int]]:
        """Return whose replies have been sent since the last call: those of a sum together."""
        sent, self.line.sent = self.line.sent, []
        return [self.members(payload) or [client] for client, payload, _ in sent]

    def members(self, payload: bytes) -> list[int]:
        one = PartialSum(BytesArrays(payload))
        return [member.client for member in one.members] if "members" in one.content else []

    def answer(self, outcome: str, members: Sequence[int] = (), **changes: Any) -> None:
        """Send a receipt of the last transfer."""
        client, _, digest = self.line.sent[-1]
        known = {"run": "run", "client": client, "round": 1, "exchange": 0, "digest": digest, "outcome": outcome}
        self.line.sent.clear()
        self.relay.take_receipt(ReceiptMessage.model_validate({**known, "members": list(members), **changes}))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_replies_wait_for_all_clients_of_the_board(bench: Bench) -> None:
    bench.open()
    bench.offer([3, 0, 1, 4])
    assert bench.take() == []
    bench.offer([2])
    assert bench.take() == [[0, 1, 2, 3, 4]]
    bench.relay.advance()
    assert bench.take() == []


def test_large_replies_are_not_held_in_memory_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum has the same bytes as one of replies in memory."""
    large = {"w": np.zeros(250_000, np.float32)}
    sums, peaks = [], []
    for limit in (10**9, 10**6):
        monkeypatch.setattr("fedquilt_client.sum_groups.IN_MEMORY", limit)
        bench.start()
        bench.open()
        *first, last = [bench.reply(client, large) for client in range(5)]
        for reply in first:
            bench.relay.offer(reply, intact=True)
        tracemalloc.start()
        try:
            bench.relay.offer(last, intact=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        sums.append(bench.line.sent[-1][1])
        assert bench.take() == [[0, 1, 2, 3, 4]]
    assert sums[0] == sums[1]
    assert peaks[1] < peaks[0] - 4 * 10**6


def test_clients_that_failed_are_not_waited_for(bench: Bench) -> None:
    bench.open()
    bench.offer([0, 1, 2])
    message = cast(RoundMessage, bench.run.round)
    bench.run.given_up.update({(c, message.fingerprint(message.tasks[0], c)): "out of memory" for c in (3, 4)})
    bench.relay.advance()
    assert bench.take() == [[0, 1, 2]]


def test_replies_leave_before_the_deadline_and_late_ones_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now))
    bench.open(deadline=now + 100)
    bench.offer([0, 1])
    now += 94
    bench.relay.advance()
    assert bench.take() == []
    now += 2
    bench.relay.advance()
    assert bench.take() == [[0, 1]]
    bench.offer([4])
    assert bench.take() == [[4]]


def test_a_clock_that_is_wrong_makes_replies_travel_alone(bench: Bench) -> None:
    bench.open(deadline=time.time() - 1e6)
    bench.offer([2, 1])
    assert bench.take() == [[2], [1]]


def test_a_single_reply_travels_as_what_it_is(bench: Bench) -> None:
    bench.open([2])
    bench.offer([2])
    assert bench.take() == [[2]]


def test_replies_that_may_not_be_added_up_travel_alone(bench: Bench) -> None:
    bench.open(summed=False)
    bench.offer([0, 1])
    assert bench.take() == [[0], [1]]


def test_a_receipt_settles_the_members_that_it_lists_and_the_others_travel_again(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("accepted", [0, 1, 2])
    assert bench.take() == [[3, 4]]


def test_an_accepted_sum_is_not_sent_again(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("accepted", range(5))
    bench.offer(range(5))
    assert bench.take() == []


def test_clients_that_a_refusal_names_travel_alone_and_the_others_together(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("rejected", [1], reason="cannot count (1)")
    assert sorted(bench.take()) == [[0, 2, 3, 4], [1]]


def test_clients_that_count_already_are_left_out(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("duplicate", [1, 2], reason="counted")
    assert bench.take() == [[0, 3, 4]]


def test_a_sum_that_is_refused_without_names_is_taken_apart(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("rejected", reason="is not valid")
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


def test_a_sum_whose_first_client_counts_already_is_taken_apart(bench: Bench) -> None:
    """The coordinator refuses it before it looks at the members, so its receipt names nobody."""
    bench.open()
    bench.offer(range(5))
    bench.answer("duplicate", reason="counted")
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("wrong", [{"w": np.zeros(60, np.float32)}, {"v": MODEL["w"]}, {"w": MODEL["w"] * np.inf}])
def test_replies_that_cannot_be_added_up_travel_alone(bench: Bench, wrong: dict[str, Any]) -> None:
    """Each gets a receipt of its own, and the agent lives on."""
    bench.open()
    bench.offer([0, 1, 2, 4])
    with np.errstate(invalid="ignore"):
        bench.relay.offer(bench.reply(3, wrong), intact=True)
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


def test_a_sum_that_stays_unwanted_is_taken_apart(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("fedquilt_client.uploads.time", SimpleNamespace(monotonic=lambda: now))
    bench.open()
    bench.offer(range(5))
    for _ in range(module._POSTPONED - 1):
        bench.answer("rejected", final=False, reason="not hosted")
        now += 60
        bench.relay.advance()
        assert len(bench.line.sent) == 1
    bench.answer("rejected", final=False, reason="not hosted")
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


def test_a_late_sum_is_dropped(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("late", reason="round 1 is closed")
    bench.relay.advance()
    assert bench.take() == []


def test_a_killed_agent_sends_the_same_sum_with_the_same_members(bench: Bench) -> None:
    message_deadline = time.time() + 3600
    bench.open(deadline=message_deadline)
    bench.offer([0, 1, 2])
    pools = bench.relay._pools
    next(iter(pools.values())).due = 0.0
    bench.relay.advance()
    (before,) = bench.line.sent
    bench.take()
    bench.start()
    bench.open(deadline=message_deadline)
    bench.offer(range(5), intact=False)  # two more are ready now
    after = bench.line.sent
    assert after[0] == before
    assert bench.take() == [[0, 1, 2], [3, 4]]


def test_a_group_whose_clients_are_not_all_asked_again_is_dissolved(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    assert bench.take() == [[0, 1, 2, 3, 4]]
    bench.open([0, 1, 2, 4])
    bench.offer([0, 1, 2, 4])
    assert bench.take() == [[0, 1, 2, 4]]


def test_a_damaged_member_is_trained_again(bench: Bench) -> None:
    bench.open()
    for client in range(5):
        stored = bench.reply(client)
        if client == 3:
            bench.store.blob(stored).path.write_bytes(b"other bytes")
        bench.relay.offer(stored)
    assert [reply.client for reply in bench.damaged] == [3]
    assert bench.take() == []
    bench.offer([3])
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_a_member_that_comes_back_with_other_bytes_joins_a_new_group(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.take()
    bench.start()
    bench.open()
    for client in range(5):
        stored = bench.reply(client)
        bench.relay.offer(replace(stored, digest="0" * 64) if client == 9 else stored)
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_a_sum_waits_for_the_arrays_that_the_clients_received(bench: Bench) -> None:
    bench.open()
    patch = bench.store.patch(cast(RoundMessage, bench.run.round).patches[0].digest)
    aside = patch.with_suffix(".aside")
    patch.rename(aside)
    bench.offer(range(5))
    assert bench.take() == []
    aside.rename(patch)
    bench.relay.advance()
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_a_sum_that_is_damaged_on_disk_is_made_again(bench: Bench) -> None:
    bench.open()
    bench.offer(range(5))
    (before,) = bench.line.sent
    (path,) = [path for path in bench.store.sums.iterdir() if path.suffix != ".json"]
    path.write_bytes(b"other bytes")
    bench.answer("rejected", damaged=True, final=False, reason="other bytes arrived")
    bench.relay.advance()
    assert bench.line.sent[-1] == before
