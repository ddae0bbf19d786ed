"""A relay: which replies it adds up and when, what it does with receipts, and that a restart sends the same sum."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.support.relay_bench import MODEL, RelayBench

from fedquilt_client import relay as module
from fedquilt_common.wire.round_messages import RoundMessage


def test_replies_wait_for_all_clients_of_the_board(bench: RelayBench) -> None:
    bench.open()
    bench.offer([3, 0, 1, 4])
    assert bench.take() == []
    bench.offer([2])
    assert bench.take() == [[0, 1, 2, 3, 4]]
    bench.relay.advance()
    assert bench.take() == []


def test_large_replies_are_not_held_in_memory_together(bench: RelayBench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_clients_that_failed_are_not_waited_for(bench: RelayBench) -> None:
    bench.open()
    bench.offer([0, 1, 2])
    message = cast(RoundMessage, bench.run.round)
    bench.run.given_up.update({(c, message.fingerprint(message.tasks[0], c)): "out of memory" for c in (3, 4)})
    bench.relay.advance()
    assert bench.take() == [[0, 1, 2]]


def test_replies_leave_before_the_deadline_and_late_ones_alone(
    bench: RelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now, monotonic=lambda: now))
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


@pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forth"])
def test_a_correction_of_the_clock_does_not_move_the_time_at_which_replies_leave(
    bench: RelayBench, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    wall, steady = 1.8e9, 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: wall, monotonic=lambda: steady))
    bench.open(deadline=wall + 100)
    bench.offer([0, 1])
    wall, steady = wall + 94 + step, steady + 94
    bench.relay.advance()
    assert bench.take() == []
    steady += 2
    bench.relay.advance()
    assert bench.take() == [[0, 1]]


def test_a_clock_that_is_wrong_makes_replies_travel_alone(bench: RelayBench) -> None:
    bench.open(deadline=time.time() - 1e6)
    bench.offer([2, 1])
    assert bench.take() == [[2], [1]]


def test_new_exchanges_whose_deadline_has_passed_have_one_warning(
    bench: RelayBench, caplog: pytest.LogCaptureFixture
) -> None:
    """The manifest that an agent finds when it starts may be old."""
    bench.open(deadline=time.time() - 60)
    bench.open(deadline=time.time() - 60)
    bench.open(deadline=time.time() + 60, exchange=1)
    bench.open(deadline=time.time() - 1, exchange=2)
    assert caplog.text == ""
    bench.open(deadline=time.time() - 60, exchange=3)
    bench.open(deadline=time.time() - 60, exchange=4)
    (text,) = (record.getMessage() for record in caplog.records)
    assert "passed 60 s ago by this board's clock" in text
    assert "set both clocks, such as with NTP" in text


def test_a_single_reply_travels_as_what_it_is(bench: RelayBench) -> None:
    bench.open([2])
    bench.offer([2])
    assert bench.take() == [[2]]


def test_replies_that_may_not_be_added_up_travel_alone(bench: RelayBench) -> None:
    bench.open(summed=False)
    bench.offer([0, 1])
    assert bench.take() == [[0], [1]]


def test_a_receipt_settles_the_members_that_it_lists_and_the_others_travel_again(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("accepted", [0, 1, 2])
    assert bench.take() == [[3, 4]]


def test_an_accepted_sum_is_not_sent_again(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("accepted", range(5))
    bench.offer(range(5))
    assert bench.take() == []


def test_clients_that_a_refusal_names_travel_alone_and_the_others_together(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("rejected", [1], reason="cannot count (1)")
    assert sorted(bench.take()) == [[0, 2, 3, 4], [1]]


def test_clients_that_count_already_are_left_out(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("duplicate", [1, 2], reason="counted")
    assert bench.take() == [[0, 3, 4]]


def test_a_sum_that_is_refused_without_names_is_taken_apart(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("rejected", reason="is not valid")
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


def test_a_sum_whose_first_client_counts_already_is_taken_apart(bench: RelayBench) -> None:
    """The coordinator refuses it before it looks at the members, so its receipt names nobody."""
    bench.open()
    bench.offer(range(5))
    bench.answer("duplicate", reason="counted")
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("wrong", [{"w": np.zeros(60, np.float32)}, {"v": MODEL["w"]}, {"w": MODEL["w"] * np.inf}])
def test_replies_that_cannot_be_added_up_travel_alone(bench: RelayBench, wrong: dict[str, Any]) -> None:
    """Each gets a receipt of its own, and the agent lives on."""
    bench.open()
    bench.offer([0, 1, 2, 4])
    with np.errstate(invalid="ignore"):
        bench.relay.offer(bench.reply(3, wrong), intact=True)
    assert sorted(bench.take()) == [[0], [1], [2], [3], [4]]


def test_a_sum_that_stays_unwanted_is_taken_apart(bench: RelayBench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_late_sum_is_dropped(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.answer("late", reason="round 1 is closed")
    bench.relay.advance()
    assert bench.take() == []


def test_a_killed_agent_sends_the_same_sum_with_the_same_members(bench: RelayBench) -> None:
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


def test_a_group_whose_clients_are_not_all_asked_again_is_dissolved(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    assert bench.take() == [[0, 1, 2, 3, 4]]
    bench.open([0, 1, 2, 4])
    bench.offer([0, 1, 2, 4])
    assert bench.take() == [[0, 1, 2, 4]]


def test_a_damaged_member_is_trained_again(bench: RelayBench) -> None:
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


def test_a_member_that_comes_back_with_other_bytes_joins_a_new_group(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    bench.take()
    bench.start()
    bench.open()
    for client in range(5):
        stored = bench.reply(client)
        bench.relay.offer(replace(stored, digest="0" * 64) if client == 9 else stored)
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_a_sum_waits_for_the_arrays_that_the_clients_received(bench: RelayBench) -> None:
    bench.open()
    patch = bench.store.patch(cast(RoundMessage, bench.run.round).patches[0].digest)
    aside = patch.with_suffix(".aside")
    patch.rename(aside)
    bench.offer(range(5))
    assert bench.take() == []
    aside.rename(patch)
    bench.relay.advance()
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_a_sum_that_is_damaged_on_disk_is_made_again(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    (before,) = bench.line.sent
    (path,) = [path for path in bench.store.sums.iterdir() if path.suffix != ".json"]
    path.write_bytes(b"other bytes")
    bench.answer("rejected", damaged=True, final=False, reason="other bytes arrived")
    bench.relay.advance()
    assert bench.line.sent[-1] == before
