"""Sums that clients spoil: wrong shares are left out, wrong secrets are named, and without spare shares nobody is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.common.secure_aggregation.test_secure_sum import TASK, Board, fixed_mean

from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import SpoiledSumError
from fedquilt_common.secure_aggregation.keys import new_secret, split_secret
from fedquilt_common.secure_aggregation.server_half import sum_replies
from fedquilt_common.secure_aggregation.shares import ShareJoiner
from fedquilt_common.secure_aggregation.tasks import SHARES, UNMASK


def spoil(clients: int, threshold: int, step: str, change: Callable[[int, Reply], Reply]) -> Mapping[int, Reply]:
    """Run a sum in which clients change what they send in a step; returns what the algorithm receives."""
    boards = {client: Board(client) for client in range(clients)}
    steps = sum_replies(dict.fromkeys(boards, TASK), threshold, "1.5 0")
    tasks = next(steps)
    while True:
        kind = next(iter(tasks.values())).kind
        replies = {client: boards[client].answer(task) for client, task in tasks.items()}
        if kind == step:
            replies = {client: change(client, reply) for client, reply in replies.items()}
        try:
            tasks = steps.send(replies)
        except StopIteration as done:
            result: Mapping[int, Reply] = done.value
            return result


def garbled(name: str, *clients: int, rows: slice = slice(None)) -> Callable[[int, Reply], Reply]:
    """Return a change that makes clients send other bytes in some rows of an array."""

    def change(client: int, reply: Reply) -> Reply:
        if client not in clients:
            return reply
        arrays = {key: np.array(array) for key, array in reply.arrays.items()}
        arrays[name][rows] ^= 0x55
        return Reply(arrays)

    return change


@pytest.mark.parametrize(
    ("step", "change", "left_out"),
    [
        (UNMASK, garbled("shares", 0), "client 0"),
        (UNMASK, garbled("shares", 0, 2), "clients 0, 2"),
        (UNMASK, garbled("shares", 1, rows=slice(2, 3)), "client 1"),
        (SHARES, garbled("sealed", 3, rows=slice(0, 2)), ""),  # two others cannot open what client 3 sealed for them
    ],
)
def test_wrong_shares_are_left_out(
    step: str, change: Callable[[int, Reply], Reply], left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    replies = spoil(6, 4, step, change)
    assert set(replies) == set(range(6))
    np.testing.assert_array_equal(replies[0].arrays["weight"], fixed_mean(set(range(6)))["weight"])
    expected = f"shares that {left_out} sent do not fit together with the others" if left_out else "3 sent to client"
    assert expected in caplog.text


@pytest.mark.parametrize(("change", "guilty"), [(garbled("commitment", 4), (4,)), (garbled("sealed", 1, 4), (1, 4))])
def test_who_shares_no_secret_that_can_be_joined_is_named(
    change: Callable[[int, Reply], Reply], guilty: tuple[int, ...]
) -> None:
    with pytest.raises(SpoiledSumError, match=r"clients? [\d, ]+ shared wrong secrets") as raised:
        spoil(6, 4, SHARES, change)
    assert raised.value.clients == guilty


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)])
def test_without_spare_shares_a_liar_is_not_found(rows: slice) -> None:
    """It could accuse another client by a wrong share of its secret alone."""
    with pytest.raises(SpoiledSumError, match="not known who sent wrong ones") as raised:
        spoil(4, 4, UNMASK, garbled("shares", 2, rows=rows))
    assert raised.value.clients == ()


@settings(deadline=None, max_examples=20)
@given(st.integers(3, 9), st.data())
def test_a_secret_is_joined_from_any_shares_of_which_enough_are_right(count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, count))
    wrong = set(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count - threshold))])
    joiner, secret = ShareJoiner(threshold), new_secret()
    shares = dict(enumerate(split_secret(secret, threshold, count)))
    told = {position: new_secret() if position in wrong else share for position, share in shares.items()}
    for _ in range(2):
        assert joiner.join(told, lambda found: found == secret) == secret
    assert joiner.liars in (set(), wrong)
