"""The mean of replies: right, whatever the order, the block size and the place where the arrays lie."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from tests.support.data import golden_vectors

from fedquilt_common.aggregation import averages
from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate, mean
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import PayloadError
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Segment, Slice
from fedquilt_common.wire.codec import FileArrays, write_arrays

Arrays = dict[str, NDArray[Any]]

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)
CLIENTS = st.lists(st.integers(0, 99), min_size=1, max_size=6, unique=True)
SEEDS = st.integers(0, 2**32 - 1)
WEIGHTS = st.floats(0, 1e12) | st.integers(0, 1000).map(float)
EDGES = (0.0, -0.0, 1.0, -1.0, 1e6, -1e6, 0.5, 1e-30, 2.0**-149)


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return numbers up to a million of any magnitude, one in four from ``EDGES``."""
    usual = rng.uniform(-1, 1, shape) * 10.0 ** rng.integers(-9, 7, shape)
    return np.where(rng.random(shape) < 0.25, rng.choice(EDGES, shape), usual)


def _fixed(size: int) -> tuple[Segment, ...]:
    return (Segment(None, size),)


def _arrays(rng: np.random.Generator, shape: tuple[int, ...]) -> Arrays:
    return {
        "w": _floats(rng, shape).astype(np.float32),
        "wide": _floats(rng, (5,)),
        "steps": rng.integers(-(2**40), 2**40, 7) >> rng.integers(0, 41, 7),
        "one": _floats(rng, ()).astype(np.float32),
    }


@st.composite
def exchanges(draw: st.DrawFn) -> dict[int, Reply]:
    """Replies of up to six clients with the same arrays: two of floats, one of integers, one of one number."""
    shape = draw(SHAPES)
    clients = draw(CLIENTS)
    rng = np.random.default_rng(draw(SEEDS))
    replies = {client: Reply(_arrays(rng, shape), draw(WEIGHTS)) for client in clients}
    if sum(reply.weight for reply in replies.values()) < 1e-300:
        replies[clients[0]] = Reply(replies[clients[0]].arrays, 1.0)
    return replies


def naive(replies: dict[int, Reply], name: str) -> NDArray[Any]:
    stacked = np.stack([reply.arrays[name].astype(np.float64) for reply in replies.values()])
    return np.asarray(np.average(stacked, axis=0, weights=[reply.weight for reply in replies.values()]))


def same_bits(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        (one[n].dtype, one[n].shape, one[n].tobytes()) == (other[n].dtype, other[n].shape, other[n].tobytes())
        for n in one
    )


@given(exchanges())
def test_the_mean_is_the_naive_mean(replies: dict[int, Reply]) -> None:
    found = mean(replies)
    first = next(iter(replies.values())).arrays
    assert {name: (x.dtype, x.shape) for name, x in found.items()} == {n: (x.dtype, x.shape) for n, x in first.items()}
    np.testing.assert_allclose(found["wide"], naive(replies, "wide"), rtol=1e-12, atol=1e-8)
    for name in ("w", "one"):
        np.testing.assert_allclose(found[name], naive(replies, name), rtol=1e-6, atol=1e-8)
    assert (np.abs(found["steps"] - naive(replies, "steps")) <= 0.5 + 1e-3).all()


@given(exchanges(), st.randoms())
@settings(max_examples=50)
def test_the_order_of_arrival_does_not_matter_to_a_bit(replies: dict[int, Reply], random: Any) -> None:
    arrived = list(replies.items())
    random.shuffle(arrived)
    assert same_bits(mean(replies), mean(dict(arrived)))


def test_the_order_of_clients_is_that_of_the_sum() -> None:
    """Were it the order of arrival, these sums would differ."""
    big, one = np.array([2.0**53]), np.array([1.0])
    arrays = {0: big, 1: one, 2: -big, 3: one}
    values = {tuple(mean({c: Reply({"w": arrays[c]}) for c in order})["w"]) for order in ([0, 1, 2, 3], [2, 0, 3, 1])}
    assert values == {(0.25,)}


@settings(deadline=None)
@given(exchanges(), st.integers(1, 9), st.sampled_from([0, 10**9]))
def test_blocks_and_threads_change_nothing(replies: dict[int, Reply], size: int, worth: int) -> None:
    whole = mean(replies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averages, "BLOCK", size)
        patch.setattr(averages, "_WORTH_THREADS", worth)
        assert same_bits(mean(replies), whole)


@settings(deadline=None)
@given(exchanges(), st.integers(1, 9))
def test_files_give_the_same_as_memory(replies: dict[int, Reply], size: int) -> None:
    narrow = {c: Reply({n: x for n, x in r.arrays.items() if n != "wide"}, r.weight) for c, r in replies.items()}
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(averages, "BLOCK", size)
        stored = {
            client: Reply(FileArrays(write_arrays(Path(place) / str(client), reply.arrays).path), reply.weight)
            for client, reply in narrow.items()
        }
        like = next(iter(narrow.values())).arrays
        assert same_bits(mean(stored, like), mean(narrow, like))


@pytest.mark.parametrize(
    ("values", "rounded"), [([0, 1], 0), ([1, 2], 2), ([1, 1, 2], 1), ([-1, -2, -2], -2), ([2, 2, 3, 3, 3], 3)]
)
def test_integers_are_rounded_to_nearest(values: list[int], rounded: int) -> None:
    replies = {i: Reply({"steps": np.array(value)}) for i, value in enumerate(values)}
    found = mean(replies)["steps"]
    assert found == rounded
    assert found.dtype == np.int64


@given(exchanges())
def test_a_weight_of_zero_does_not_count(replies: dict[int, Reply]) -> None:
    silent = Reply({name: x + x.dtype.type(1) for name, x in next(iter(replies.values())).arrays.items()}, 0.0)
    assert all(np.array_equal(x, mean(replies)[name]) for name, x in mean(replies | {1000: silent}).items())


BAD = {
    "none": [],
    "zero": [0.0],
    "zeros": [0.0, 0.0],
    "negative": [-1.0],
    "one negative": [3.0, -1.0],
    "nan": [float("nan")],
    "one nan": [1.0, float("nan")],
    "infinite": [float("inf"), 1.0],
    "infinite sum": [1e308, 1e308],
    "infinite both ways": [float("inf"), float("-inf")],
}


@pytest.mark.parametrize("weights", BAD.values(), ids=BAD)
def test_weights_that_make_no_mean(weights: list[float]) -> None:
    with pytest.raises(PayloadError, match=r"no reply to average|must not be negative, and their sum must be finite"):
        mean({i: Reply({"w": np.ones(2)}, weight) for i, weight in enumerate(weights)})


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ({"a": np.ones(1)}, r"client 7: the array 'a' has the shape \(1,\) instead of \(2, 3\)"),
        ({"a": np.ones((3, 2))}, r"client 7: the array 'a' has the shape \(3, 2\) instead of \(2, 3\)"),
        ({"b": np.ones((2, 3))}, "client 7: the reply lacks the array 'a'"),
    ],
)
def test_replies_of_other_names_or_shapes_make_no_mean(second: dict[str, Any], text: str) -> None:
    """As flat arrays they would be added up, cut off or repeated."""
    first, net = {"a": np.ones((2, 3))}, Anatomy((), {"a": ArrayAnatomy((2, 3), "float64", (_fixed(2), _fixed(3)))})
    with pytest.raises(PayloadError, match=text):
        mean({1: Reply(first, 1.0), 7: Reply(second, 1.0)})
    updates = {client: SubModelUpdate(arrays, Slice(net, ())) for client, arrays in ((1, first), (7, second))}
    with pytest.raises(PayloadError, match=text):
        aggregate(first, updates)


def test_like_says_names_and_dtype() -> None:
    replies = {i: Reply({"w": np.full(2, i, np.float32), "extra": np.ones(1)}) for i in range(2)}
    found = mean(replies, like={"w": np.zeros(2, np.float64)})
    assert list(found) == ["w"]
    assert found["w"].dtype == np.float64
    assert found["w"].tolist() == [0.5, 0.5]


def test_replies_are_left_alone() -> None:
    replies = {i: Reply({"w": np.full(4, i, np.float32)}, i + 1.0) for i in range(3)}
    mean(replies)["w"][:] = 9
    assert [reply.arrays["w"].tolist() for reply in replies.values()] == [[i] * 4 for i in range(3)]


def test_fedavg_of_published_code() -> None:
    golden = golden_vectors("h_optimiser_updates.json")["fedavg"]
    replies = {
        client: Reply({"w": np.array(params, np.float32)}, float(size))
        for client, (params, size) in enumerate(zip(golden["client_params"], golden["sizes"], strict=True))
    }
    np.testing.assert_allclose(mean(replies)["w"], golden["global"], rtol=0, atol=1e-7)
