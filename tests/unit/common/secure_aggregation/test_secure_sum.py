"""Secure aggregation in one process: exact sums, drop-outs at every step, and what clients refuse to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.tables import each

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Reply, State, Task, pooling_problem, reply_weight
from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.errors import PayloadError, SpoiledSumError
from fedquilt_common.secure_aggregation.client_half import SecureClient
from fedquilt_common.secure_aggregation.fixed_point import FRACTION_BITS, from_fixed, to_fixed
from fedquilt_common.secure_aggregation.keys import join_shares, new_secret, split_secret
from fedquilt_common.secure_aggregation.masks import MaskStream, add_masks
from fedquilt_common.secure_aggregation.server_half import SecureRounds, _mean, sum_replies
from fedquilt_common.secure_aggregation.tasks import KEYS, MASKED_WITH, SHARES, UNMASK, WEIGHT

pytest.importorskip("Crypto", reason="needs the extra secure")
TASK = Task("train", {"weight": np.zeros((3, 5), np.float32), "steps": np.zeros((), np.int64)}, {"lr": 0.1})
STEPS = [KEYS, SHARES, "train", UNMASK]
FIELDS: dict[str, dict[str, Any]] = {
    "ditto": {"lambda": 0.1}, "fedprox": {"mu": 0.1}, "feddyn": {"alpha": 0.1}, "qfedavg": {"q": 0.1},
}  # fmt: skip
SUMMED = {
    "fedavg", "fedprox", "fedopt", "feddyn", "ditto", "fedrod", "fedper", "fedrep", "fedbabu", "all-large",
    "fedavg-weighted", "scaffold", "moon", "fedmd", "fedakd", "dsfl", "fedproto",
}  # fmt: skip


@dataclass
class Board:
    """A client with its own memory."""

    client: int
    reply: Callable[[int], Reply] = lambda client: plain_reply(client)
    round: int = 1
    secrets: dict[str, NDArray[Any]] = field(default_factory=dict)

    def answer(self, task: Task) -> Reply:
        return SecureClient(self, lambda reply: reply.weight).do(task, self.train)

    def train(self, task: Task) -> Reply:
        assert dict(task.scalars) == {"lr": 0.1}, "the algorithm sees only its own scalars"
        return self.reply(self.client)


def plain_reply(client: int) -> Reply:
    rng = np.random.default_rng(client)
    arrays = {"weight": rng.normal(size=(3, 5)).astype(np.float32), "steps": np.array(int(rng.integers(100)))}
    return Reply(arrays, float(1 + client), {"loss": 2.0, "train_seconds": 3.0})


def add_up(
    clients: int,
    threshold: int,
    gone: Mapping[str, set[int]],
    seen: list[dict[int, Reply]] | None = None,
    task: Task = TASK,
    train: Callable[[int], Reply] | None = None,
) -> Mapping[int, Reply]:
    """Run a sum in which some clients stop answering from a step on; returns what the algorithm receives."""
    boards = {client: Board(client, train or plain_reply) for client in range(clients)}
    steps = sum_replies(dict.fromkeys(boards, task), threshold, "1.5 0")
    tasks, lost = next(steps), set[int]()
    while True:
        kind = next(iter(tasks.values())).kind
        lost |= gone.get(kind, set())
        replies = {client: boards[client].answer(task) for client, task in tasks.items() if client not in lost}
        if seen is not None:
            seen.append(replies)
        try:
            tasks = steps.send(replies)
        except StopIteration as done:
            result: Mapping[int, Reply] = done.value
            return result


def fixed_mean(clients: set[int]) -> dict[str, NDArray[Any]]:
    """Return the mean that the sum must give, without masks."""
    replies = [plain_reply(client) for client in sorted(clients)]
    weight = sum(reply.weight for reply in replies)
    sums = {name: sum(to_fixed(name, r.arrays[name], r.weight, 9) for r in replies) for name in replies[0].arrays}
    means = from_fixed(np.asarray(sums["weight"])) / weight, from_fixed(np.asarray(sums["steps"]), 8) / weight
    return {"weight": means[0].astype(np.float32), "steps": np.asarray(np.rint(means[1]), np.int64)}


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_the_mean_has_the_bits_of_the_sum_without_masks(data: st.DataObject) -> None:
    clients = data.draw(st.integers(3, 8))
    threshold = data.draw(st.integers(max(3, clients // 2 + 1), clients))
    leaving = data.draw(st.permutations(range(clients)))[: clients - threshold]
    gone: dict[str, set[int]] = {}
    for client in leaving:
        gone.setdefault(data.draw(st.sampled_from(STEPS)), set()).add(client)
    replies = add_up(clients, threshold, gone)
    survivors = set(range(clients)) - set().union(*(gone.get(step, set()) for step in STEPS[:3]))
    assert set(replies) == survivors
    expected = fixed_mean(survivors)
    for reply in replies.values():
        assert (reply.weight, dict(reply.metrics)) == (1.0, {})
        for name, array in expected.items():
            np.testing.assert_array_equal(reply.arrays[name], array)
            assert reply.arrays[name].dtype == array.dtype


def test_the_mean_is_that_of_plain_aggregation() -> None:
    """A client without samples, a large one, and every kind of array, to the rounding that the docs name."""
    weights = [0.0, 1.0, 1e6, 3.5]

    def reply(client: int) -> Reply:
        rng = np.random.default_rng(client)
        arrays: dict[str, NDArray[Any]] = {
            "floats": rng.normal(size=(40, 3)).astype(np.float32),
            "halves": rng.normal(size=5).astype(np.float16),
            "doubles": np.asarray(rng.normal()),
            "none": np.zeros((0, 4), np.float32),
            "steps": np.array(int(rng.integers(1_000))),
            "bytes": rng.integers(0, 256, 6).astype(np.uint8),
            "flags": rng.random(6) < 0.5,
        }
        return Reply(arrays, weights[client])

    like = reply(0).arrays
    found = add_up(4, 3, {}, task=Task("train", like, {"lr": 0.1}), train=reply)[3].arrays
    expected = mean({client: reply(client) for client in range(4)})
    for name, array in expected.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == (np.float32 if array.dtype.kind == "f" else array.dtype)
        np.testing.assert_allclose(found[name], array, rtol=1e-3 if name == "halves" else 1e-6, atol=1e-9)


def test_whole_numbers_that_the_task_does_not_send_have_their_size() -> None:
    counts = [np.array([client, 10 * client, 7]) for client in range(3)]
    task = Task("train", {}, {"lr": 0.1}, expect={"counts": (3,)}, dtypes={"counts": "int64"})
    found = add_up(3, 3, {}, task=task, train=lambda client: Reply({"counts": counts[client]}))[0].arrays["counts"]
    assert found.tolist() == [1, 10, 7]
    assert found.dtype == np.int64


@pytest.mark.parametrize(("dtype", "text"), [("int64", "int64 instead of floats"), ("bool", "bool instead of floats")])
def test_a_reply_of_another_kind_of_numbers_is_not_masked(dtype: str, text: str) -> None:
    """Its fraction would have another length than the coordinator expects, which a mask hides."""
    task = Task("train", {}, {"lr": 0.1}, expect={"counts": (3,)})
    with pytest.raises(PayloadError, match=rf"'counts' has dtype {text}; name the dtype in Task\.dtypes"):
        add_up(3, 3, {}, task=task, train=lambda _: Reply({"counts": np.ones(3, dtype)}))


def test_tasks_that_expect_different_arrays_cannot_be_summed() -> None:
    tasks = {client: Task("train", {}, expect={"w": (client,)}) for client in range(1, 4)}
    with pytest.raises(PayloadError, match="replies of different shapes, which cannot be summed"):
        next(sum_replies(tasks, 3, "1.5 0"))


def test_the_coordinator_sees_noise() -> None:
    """Without a mask the upper bits of small numbers are all equal; a masked reply uses all of them alike."""
    seen: list[dict[int, Reply]] = []
    add_up(4, 3, {}, seen)
    for client, reply in seen[2].items():
        assert set(reply.metrics) == {"train_seconds"}
        assert reply.weight == 1.0
        values = reply.arrays["weight"].view(np.uint64).ravel()
        bits = np.array([int(v).bit_count() for v in values])
        assert 24 < bits.mean() < 40
        fixed = to_fixed("w", plain_reply(client).arrays["weight"], 1.0 + client, 4).view(np.uint64).ravel()
        assert not np.isin(values, fixed).any()
        assert reply.arrays[WEIGHT][0] != (1 + client) << FRACTION_BITS


def test_each_sum_has_masks_of_its_own() -> None:
    first: list[dict[int, Reply]] = []
    second: list[dict[int, Reply]] = []
    add_up(3, 3, {}, first)
    add_up(3, 3, {}, second)
    assert not (first[2][0].arrays["weight"] == second[2][0].arrays["weight"]).any()


@pytest.mark.parametrize("step", STEPS)
def test_too_few_clients_end_the_sum(step: str) -> None:
    with pytest.raises(SpoiledSumError, match="needs 4 clients"):
        add_up(5, 4, {step: {0, 1}})


def test_a_client_whose_public_key_is_none_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Else all others, which could not agree on a key with it, would fail."""
    boards = {client: Board(client) for client in range(4)}
    steps = sum_replies(dict.fromkeys(boards, TASK), 3, "1.5 0")
    replies = {client: boards[client].answer(task) for client, task in next(steps).items()}
    zeros = Reply({"keys": np.zeros((2, 32), np.uint8)})
    tasks = steps.send({**replies, 2: zeros})
    assert sorted(tasks) == [0, 1, 3]
    assert "public keys are not of the curve X25519: [2]" in caplog.text
    assert all(boards[client].answer(task) for client, task in tasks.items())
    again = sum_replies(dict.fromkeys(boards, TASK), 4, "1.5 0")
    next(again)
    with pytest.raises(PayloadError, match="needs 4 clients"):
        again.send({**replies, 2: zeros})


def test_a_second_agent_of_a_client_drops_out_of_the_sum() -> None:
    """Its shares belong to other keys, so no other client could open them, and all would fail."""
    boards, twin = {client: Board(client) for client in range(4)}, Board(0)
    steps = sum_replies(dict.fromkeys(boards, TASK), 3, "1.5 0")
    tasks = next(steps)
    twin.answer(tasks[0])
    tasks = steps.send({client: boards[client].answer(task) for client, task in tasks.items()})
    with pytest.raises(
        PayloadError, match=r"a second agent with its id or its state has sent them\. Stop one of the two agents"
    ):
        twin.answer(tasks[0])
    tasks = steps.send({client: boards[client].answer(task) for client, task in tasks.items()})
    with pytest.raises(PayloadError, match=r"no secrets for this sum.*participation\.quorum below per_round"):
        twin.answer(tasks[0])
    tasks = steps.send({client: boards[client].answer(tasks[client]) for client in (1, 2, 3)})
    with pytest.raises(StopIteration) as done:
        steps.send({client: boards[client].answer(task) for client, task in tasks.items()})
    assert sorted(done.value.value) == [1, 2, 3]


def test_a_negative_sum_of_weights_is_named() -> None:
    total = {"weight": np.ones(2, np.int64), WEIGHT: np.array([-(1 << 40)])}
    with pytest.raises(PayloadError, match=r"the sum of the replies' weights is -\d.*a wrong weight"):
        _mean(total, TASK)


def board_after(exchanges: int) -> tuple[Board, Mapping[int, Task]]:
    """Return board 0 of five in a sum that needs four, after its first replies, and the tasks that follow."""
    boards = {client: Board(client) for client in range(5)}
    steps = sum_replies(dict.fromkeys(boards, TASK), 4, "1.5 0")
    tasks = next(steps)
    for _ in range(exchanges):
        tasks = steps.send({client: boards[client].answer(task) for client, task in tasks.items()})
    return boards[0], tasks


def masked_board() -> tuple[Board, Mapping[int, Task]]:
    """Return board 0 of five after it has sent its masked reply, and the tasks that unmask."""
    return board_after(3)


@pytest.mark.parametrize(
    ("peers", "what"),
    [
        ("0", "nobody else"), ("0,1,2", "too few"), ("0,0,1,2", "too few, one twice"), ("1,2,3,4", "without itself"),
        ("0,1,2,3,9", "a stranger"),
    ],
)  # fmt: skip
def test_a_client_masks_with_no_small_or_foreign_group(peers: str, what: str) -> None:
    """Without masks of pairs its own mask alone hides its reply, and the others send their shares of that mask."""
    board, tasks = board_after(2)
    with pytest.raises(PayloadError, match="too few of"):
        board.answer(replace(tasks[0], scalars={**tasks[0].scalars, MASKED_WITH: peers}))
    assert board.answer(tasks[0]).arrays.keys() == {"weight", "steps", WEIGHT}


@pytest.mark.parametrize(
    ("survivors", "what"), [([0, 1, 2], "too few"), ([1, 2, 3, 4], "without itself"), ([0, 1, 2, 9], "a stranger")]
)
def test_a_client_unmasks_no_small_or_foreign_group(survivors: list[int], what: str) -> None:
    board, tasks = masked_board()
    with pytest.raises(PayloadError, match="would reveal single replies"):
        board.answer(replace(tasks[0], arrays={**tasks[0].arrays, "survivors": np.array(survivors)}))


def test_a_client_tells_its_shares_once() -> None:
    """Two answers with different survivors could tell both secrets of one client."""
    board, tasks = masked_board()
    board.answer(tasks[0])
    assert not board.secrets
    with pytest.raises(PayloadError, match=r"has sent its shares already.*secrets, nobody can: begin a new run"):
        board.answer(tasks[0])


def test_a_client_masks_one_reply_only_and_none_without_masks() -> None:
    board, _ = masked_board()
    again = replace(TASK, scalars={**TASK.scalars, ".attempt": "1.5 0", ".masked_with": "0,1,2,3,4"})
    with pytest.raises(PayloadError, match="a second one with the same masks"):
        board.answer(again)
    with pytest.raises(PayloadError, match="without masks, but the experiment promises them"):
        board.answer(TASK)
    with pytest.raises(PayloadError, match="no secrets for this sum"):
        board.answer(replace(again, scalars={**again.scalars, ".attempt": "2.5 0"}))


@pytest.mark.parametrize(("members", "threshold"), [(2, 2), (6, 3), (5, 6)])
def test_a_client_shares_no_secret_that_too_few_could_join(members: int, threshold: int) -> None:
    boards = [Board(client) for client in range(members)]
    keys = [board.answer(Task(KEYS, scalars={".attempt": "1.5 0"})).arrays["keys"] for board in boards]
    arrays = {"members": np.arange(members), "keys": np.stack(keys)}
    with pytest.raises(PayloadError, match=r"participation\.quorum"):
        boards[0].answer(Task(SHARES, arrays, {".attempt": "1.5 0", ".threshold": threshold}))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 6e7, -6e7])
def test_numbers_that_no_mask_can_hide_are_refused(value: float) -> None:
    """Four clients with 6e7 and a weight of 10 each have a sum above 2 ** 31, where fixed point overflows."""
    with pytest.raises(PayloadError, match=r"lower training\.lr"):
        to_fixed("w", np.array([0.5, value]), 10.0, 4)


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=20), st.floats(0.001, 1000))
def test_fixed_point_is_exact_to_its_step(values: list[float], weight: float) -> None:
    back = from_fixed(to_fixed("w", np.array(values), weight, 50))
    assert np.abs(back - np.array(values) * weight).max() <= 2.0 ** -(FRACTION_BITS + 1) * 1.001


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 12), st.data())
def test_any_threshold_of_the_shares_joins_the_secret(count: int, data: st.DataObject) -> None:
    threshold, secret = data.draw(st.integers(2, count)), new_secret()
    shares = split_secret(secret, threshold, count)
    chosen = data.draw(st.permutations(range(count)))
    assert join_shares({position: shares[position] for position in chosen[:threshold]}) == secret
    assert join_shares({position: shares[position] for position in chosen[: threshold - 1]}) != secret


def test_a_round_that_starts_again_asks_for_new_secrets() -> None:
    class Once:
        def round(self, state: State, ctx: Any) -> Any:
            replies = yield {0: TASK, 1: TASK, 2: TASK}
            assert replies

    @dataclass
    class Context:
        opened: float

    rounds = SecureRounds(Once(), 3)  # type: ignore[arg-type]
    tasks = [next(rounds.round(State({}), Context(at)))[0] for at in (10.25, 10.25, 99.5)]  # type: ignore[arg-type]
    assert tasks[0] == tasks[1] != tasks[2]


@each(sorted(ALGORITHMS))
def test_each_algorithm_declares_whether_its_replies_can_be_summed(name: str) -> None:
    problem = pooling_problem(make_algorithm(name, FIELDS.get(name, {}), ()))
    assert bool(problem) == (name not in SUMMED)
    assert "does not declare" not in problem


def test_weights_that_the_algorithm_sets_itself() -> None:
    reply = Reply({}, 7.0, {"accuracy": 0.25})
    cases = [("fedavg", {}, 7.0), ("feddyn", {"alpha": 0.1}, 1.0), ("fedmd", {}, 1.0), ("fedakd", {}, 0.25)]
    for name, fields, weight in cases:
        assert reply_weight(make_algorithm(name, fields, ()), reply) == weight


def test_step_counters_of_long_runs_have_room() -> None:
    """Batch norm's step counter after thousands of epochs, at 40 clients of 2,000 samples."""
    steps = np.array(10_000_000)
    assert from_fixed(to_fixed("steps", steps, 2000.0, 40), 8) == steps * 2000


def test_masks_reach_arrays_in_any_order_of_memory() -> None:
    fixed = to_fixed("w", np.asfortranarray(np.ones((3, 4), np.float32)), 1.0, 3)
    add_masks({"w": fixed}, [MaskStream(bytes(32), 1)])
    assert not (fixed == 1 << FRACTION_BITS).any()
    with pytest.raises(ValueError, match="not contiguous"):
        add_masks({"w": np.asfortranarray(fixed)}, [MaskStream(bytes(32), 1)])
