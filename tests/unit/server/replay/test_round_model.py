"""The model of an exchange: exact in constructed cases, and monotone in all."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.wire.link import Link
from fedquilt_server.replay.drawn_link import DrawnLink, MeanLink
from fedquilt_server.replay.measurements import mean_transfer_seconds, split_arrivals
from fedquilt_server.replay.round_model import (
    ClosingRule,
    ModelledTask,
    board_arrivals,
    close_exchange,
    misses_quorum,
)

SECONDS = st.floats(0, 1000)
ARRIVALS = st.lists(SECONDS, min_size=1, max_size=20)
LINKS = (
    Link(rate=1000.0, latency=0.1, loss=0.2),
    Link(rate=1000.0, loss=0.2, mtu=1000, window=3),
    Link(rate=1000.0, open=((0.0, 5.0),), period=60.0),
)
TASKS = st.lists(st.builds(ModelledTask, SECONDS, SECONDS, st.integers(0, 10**6)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("quorum", "deadline", "seconds", "replies"),
    [
        (3, 60.0, 9.0, 3),  # all reply in time
        (2, 5.0, 5.0, 2),  # the deadline passes with the quorum
        (2, 3.0, 4.0, 2),  # the quorum is complete after the deadline
        (3, 3.0, 9.0, 3),  # it takes all of them
    ],
)
def test_an_exchange_closes_as_the_policy_says(quorum: int, deadline: float, seconds: float, replies: int) -> None:
    closed = close_exchange([9.0, 4.0, 2.0], ClosingRule(quorum, deadline))
    assert (closed.seconds, closed.replies) == (seconds, replies)


@given(ARRIVALS, st.integers(1, 20), SECONDS, SECONDS)
def test_a_larger_quorum_or_a_later_deadline_is_never_faster(
    arrivals: list[float], quorum: int, deadline: float, more: float
) -> None:
    closed = close_exchange(arrivals, ClosingRule(quorum, deadline))
    for rule in (ClosingRule(quorum + 1, deadline), ClosingRule(quorum, deadline + more)):
        other = close_exchange(arrivals, rule)
        assert other.seconds >= closed.seconds
        assert other.replies >= closed.replies


@given(ARRIVALS, st.integers(1, 20), SECONDS)
def test_an_exchange_closes_with_a_quorum_and_not_after_the_last_reply(
    arrivals: list[float], quorum: int, deadline: float
) -> None:
    rule = ClosingRule(quorum, deadline)
    closed = close_exchange(arrivals, rule)
    assert closed.replies >= min(quorum, len(arrivals))
    assert closed.seconds <= max(arrivals)
    assert misses_quorum(arrivals, rule) == (sum(a <= deadline for a in arrivals) < min(quorum, len(arrivals)))


def test_tasks_queue_for_the_boards_processes() -> None:
    tasks = [ModelledTask(1.0, 0.5, 100), ModelledTask(2.0, 0.1, 100), ModelledTask(4.0, 0.2, 100)]
    assert board_arrivals(tasks, 1) == pytest.approx([1.5, 3.6, 7.8])
    assert board_arrivals(tasks, 2) == pytest.approx([1.5, 2.1, 5.7])


def test_a_link_carries_one_reply_at_a_time_in_each_direction() -> None:
    link = Link(rate=100.0, latency=0.5)
    tasks = [ModelledTask(1.0, 0.0, 200), ModelledTask(0.0, 0.0, 200)]
    assert mean_transfer_seconds(link, 200) == pytest.approx(2.5)
    for line in (MeanLink(link), DrawnLink(link, random.Random(0))):
        assert board_arrivals(tasks, 2, line) == pytest.approx([7.0, 5.0])


@given(TASKS, st.integers(1, 4), st.integers(0, 99), st.sampled_from(LINKS))
def test_more_processes_and_no_link_are_never_slower(
    tasks: list[ModelledTask], workers: int, seed: int, link: Link
) -> None:
    same = [ModelledTask(task.train, 0.0, task.size) for task in tasks]
    assert max(board_arrivals(same, len(same))) <= max(board_arrivals(same, workers)) + 1e-6
    for line in (MeanLink(link), DrawnLink(link, random.Random(seed), opened_at=seed)):
        slow = board_arrivals(tasks, workers, line)
        assert all(a <= b + 1e-6 for a, b in zip(board_arrivals(tasks, workers), slow, strict=True))


@given(TASKS, st.integers(1, 4))
def test_the_parts_of_recorded_arrivals_give_the_arrivals_again(tasks: list[ModelledTask], workers: int) -> None:
    arrivals = sorted(board_arrivals(tasks, 1))
    trains = [task.train for task in tasks]
    lags, gaps = split_arrivals(arrivals, trains, workers)
    assert len(lags) + len(gaps) == len(tasks)
    assert [lag + train for lag, train in zip(lags, trains, strict=False)] == pytest.approx(arrivals[:workers])
    again = [ModelledTask(t, p, 0) for t, p in zip(trains, [*lags, *gaps], strict=True)]
    if workers == 1:
        assert board_arrivals(again, 1) == pytest.approx(arrivals, abs=1e-6)


def test_an_exchange_without_tasks_closes_at_once() -> None:
    assert close_exchange([], ClosingRule(1, math.inf)).seconds == 0.0
