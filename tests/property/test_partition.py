"""Shares of the data: whatever is asked, each sample goes to exactly one client."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.partition import Scheme, partition, partition_by
from fedquilt_common.errors import ExperimentError

labels_of = st.builds(
    lambda seed, classes, size: np.random.default_rng(seed).integers(0, classes, size),
    st.integers(0, 2**32 - 1), st.integers(1, 10), st.integers(1, 300),
)  # fmt: skip
alphas = st.floats(1e-4, 1e4)
seeds = st.integers(0, 2**63 - 1)


@given(
    labels_of,
    st.data(),
    st.sampled_from(["uniform", "dirichlet", "dirichlet-per-class"]),
    alphas,
    seeds,
)
def test_every_sample_once_and_enough_for_each(
    labels: NDArray[np.int64], data: st.DataObject, scheme: str, alpha: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    least = data.draw(st.integers(1, len(labels) // clients))
    shares = partition(labels, clients, scheme, alpha, least, seed)
    assert len(shares) == clients
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(labels)))
    assert min(map(len, shares)) >= least
    assert all(share.dtype == np.int64 and (np.diff(share) > 0).all() for share in shares)
    again = partition(labels, clients, scheme, alpha, least, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-per-class"])
@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_who_gives_samples_keeps_enough(scheme: str, alpha: float) -> None:
    """There are just enough samples, so the clients that give some soon have hardly more than the others need."""
    for seed in range(20):
        shares = partition(np.arange(160) % 5, 8, scheme, alpha, 20, seed)
        assert [len(share) for share in shares] == [20] * 8


@given(st.integers(1, 500), st.data(), seeds)
def test_uniform_sizes_differ_by_one_at_most(n: int, data: st.DataObject, seed: int) -> None:
    clients = data.draw(st.integers(1, n))
    sizes = {len(share) for share in partition(np.zeros(n, int), clients, "uniform", None, 1, seed)}
    assert max(sizes) - min(sizes) <= 1


@given(labels_of, st.data(), alphas, seeds)
def test_every_sample_once_with_cumulative_floors(
    labels: NDArray[np.int64], data: st.DataObject, alpha: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    scheme = Scheme("dirichlet-per-class", alpha, 1, rounding="cumulative-floor")
    shares = partition_by(scheme, labels, clients, seed)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(labels)))
    assert min(map(len, shares)) >= 1


def test_cumulative_floors_are_those_of_pfllib() -> None:
    """PFLlib: ``(np.cumsum(proportions) * len(idx_k)).astype(int)[:-1]``, for a single class."""
    parts = np.random.Generator(np.random.PCG64(5)).dirichlet(np.full(4, 0.5))
    shares = partition_by(Scheme("dirichlet-per-class", 0.5, 1, rounding="cumulative-floor"), np.zeros(997, int), 4, 5)
    bounds = (np.cumsum(parts) * 997).astype(int)[:-1]
    assert [len(share) for share in shares] == np.diff([0, *bounds, 997]).tolist()


def class_skew(alpha: float, scheme: str = "dirichlet") -> float:
    """Mean share of a client's most frequent class."""
    labels = np.arange(20_000) % 10
    shares = partition(labels, 20, scheme, alpha, 10, seed=3)
    return float(np.mean([np.bincount(labels[share]).max() / len(share) for share in shares]))


def size_skew(alpha: float) -> float:
    sizes = [len(share) for share in partition(np.arange(20_000) % 10, 20, "dirichlet", alpha, 10, seed=3)]
    return float(np.std(sizes) / np.mean(sizes))


def test_smaller_alpha_means_more_skew_in_classes_and_in_sizes() -> None:
    assert class_skew(0.1) > class_skew(1) > class_skew(1000)
    assert class_skew(1000) < 0.13
    assert size_skew(0.1) > size_skew(1) > size_skew(1000)
    assert size_skew(1000) < 0.1


def test_per_class_nobody_who_has_its_equal_share_gets_another_class() -> None:
    labels = np.arange(20_000) % 10
    for alpha in (1e-300, 1e-3, 0.05, 0.1, 0.5):
        for share in partition(labels, 20, "dirichlet-per-class", alpha, 10, seed=3):
            counts = np.bincount(labels[share], minlength=10)
            last = np.flatnonzero(counts)[-1]
            assert counts[:last].sum() < 1000 + 10  # the equal share, and what topping up may have added
    skews = [class_skew(alpha, "dirichlet-per-class") for alpha in (0.1, 1, 1000)]
    assert skews == sorted(skews, reverse=True)
    assert skews[-1] < 0.2  # whoever is full early gets nothing of the last classes


def impurity(alpha: float, scheme: str) -> float:
    """Share of the samples that are not of the most frequent class of their client, over ten seeds."""
    labels = np.arange(1800) % 10
    shares = [share for seed in range(10) for share in partition(labels, 10, scheme, alpha, 1, seed)]
    return 1 - sum(int(np.bincount(labels[share]).max()) for share in shares) / (10 * len(labels))


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-per-class"])
def test_a_tiny_alpha_gives_whole_classes_to_single_clients(scheme: str) -> None:
    """Weights that all underflow to 0 would divide a class equally, the opposite of what is asked."""
    impurities = [impurity(alpha, scheme) for alpha in (1e-300, 1e-6, 1e-3, 0.5)]
    assert impurities[-1] > 1.1 * max(impurities[:-1])
    assert max(impurities[:-1]) - min(impurities[:-1]) < 0.1


def test_a_huge_alpha_gives_equal_parts() -> None:
    for scheme in ("dirichlet", "dirichlet-per-class"):
        shares = partition(np.zeros(1000, int), 8, scheme, 1.7e308, 1, seed=3)
        assert {len(share) for share in shares} == {125}


def test_seeds_give_different_shares() -> None:
    labels = np.arange(100) % 10
    for scheme in ("uniform", "dirichlet", "dirichlet-per-class"):
        first, second = (partition(labels, 4, scheme, 0.5, 1, seed) for seed in (1, 2))
        assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def fingerprint(scheme: str, alpha: float = 0.3, least: int = 10) -> str:
    shares = partition(np.arange(1000) % 7, 8, scheme, alpha, least, seed=7)
    return hashlib.sha256(b"".join(share.astype("<i8").tobytes() + b"|" for share in shares)).hexdigest()[:16]


def test_the_same_shares_on_every_machine_and_version() -> None:
    """Each board computes the shares itself: a numpy that drew otherwise would mix up the clients' data."""
    assert (fingerprint("uniform"), fingerprint("dirichlet")) == ("be835c1065ed9d36", "4e51e68ff29b58c5")
    assert fingerprint("dirichlet-per-class") == "da1810d897aeb703"
    assert (fingerprint("dirichlet", 0.01), fingerprint("dirichlet-per-class", 0.01)) == (
        "13bb878594e9347d", "9bdb99593a73e0ff",
    )  # fmt: skip
    # with clients that are topped up
    assert (fingerprint("dirichlet", least=100), fingerprint("dirichlet-per-class", least=100)) == (
        "2cc004ac46f39ce6", "72a60644f47ba78f",
    )  # fmt: skip


def test_digits_for_eight_clients() -> None:
    labels = load_dataset("digits").train.y
    sizes = [len(share) for share in partition(labels, 8, "dirichlet", 0.3, 10, seed=7)]
    assert sum(sizes) == len(labels)
    assert min(sizes) >= 10


def test_fast_enough_for_a_hundred_clients() -> None:
    started = time.process_time()
    partition(np.arange(60_000) % 10, 100, "dirichlet", 0.01, 300, seed=0)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "scheme",
    [Scheme("uniform"), Scheme("natural", subjects=np.arange(120_000) % 40_000), Scheme("labels-per-client", labels=2)],
    ids=lambda scheme: scheme.name,
)
def test_time_grows_with_the_clients_and_not_with_their_square(scheme: Scheme) -> None:
    """40,000 clients take less than 5 s of the processor; what looks at all clients for each client took minutes."""
    started = time.process_time()
    shares = partition_by(scheme, np.arange(120_000) % 10, 40_000, seed=0)
    assert len(shares) == 40_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("clients", "scheme", "alpha", "least", "expected"),
    [
        (11, "uniform", None, 1, "data.clients = 11: the data set has 10 samples"),
        (0, "uniform", None, 1, "data.clients = 0"),
        (2, "uniform", None, 0, "min_samples = 0"),
        (2, "dirichlet", 1.0, 6, "min_samples = 6: 2 clients .* need 12 samples, but there are 10"),
        (2, "dirichlet", None, 1, "data.partition.alpha = None"),
        (2, "dirichlet", 0.0, 1, "data.partition.alpha = 0.0"),
        (2, "dirichlet", float("nan"), 1, "data.partition.alpha = nan"),
        (2, "shards", 1.0, 1, "choose 'uniform' or one of dirichlet, dirichlet-per-class"),
    ],
)
def test_what_cannot_be(clients: int, scheme: str, alpha: float | None, least: int, expected: str) -> None:
    with pytest.raises(ExperimentError, match=expected):
        partition(np.arange(10) % 2, clients, scheme, alpha, least, seed=0)


def test_without_samples_fewer_clients_are_no_advice() -> None:
    with pytest.raises(ExperimentError, match=r"data\.set: the data set has no samples for its 8 clients; .* own if"):
        partition(np.zeros(0, np.int64), 8, "uniform", None, 1, seed=0)


def test_regression_has_no_classes_to_skew() -> None:
    targets = np.linspace(0, 1, 10)
    with pytest.raises(ExperimentError, match=r"has no class for each sample; set data\.partition\.bins"):
        partition(targets, 2, "dirichlet", 1.0, 1, seed=0)  # type: ignore[arg-type]
    assert len(partition(targets, 2, "uniform", None, 1, seed=0)) == 2  # type: ignore[arg-type]


@given(st.integers(1, 8), st.integers(1, 5), st.data(), seeds)
def test_equally_many_of_each_class_that_a_client_has(clients: int, each: int, data: st.DataObject, seed: int) -> None:
    labels = np.repeat(np.arange(6), clients * each)
    least = data.draw(st.integers(1, 6))
    most = data.draw(st.integers(least, 6))
    scheme = Scheme("per-class", per_class=each, classes=(least, most))
    shares = partition_by(scheme, labels, clients, seed)
    taken = np.concatenate(shares)
    assert len(set(taken)) == len(taken)
    for share in shares:
        counts = np.bincount(labels[share], minlength=6)
        assert set(counts) <= {0, each}
        assert least <= (counts > 0).sum() <= most
    again = partition_by(scheme, labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


@given(labels_of, st.data(), seeds)
def test_each_client_has_its_number_of_classes_and_all_samples_are_used(
    labels: NDArray[np.int64], data: st.DataObject, seed: int
) -> None:
    kinds, counts = np.unique(labels, return_counts=True)
    each = data.draw(st.integers(1, len(kinds)))
    least = -(-len(kinds) // each)
    clients = data.draw(st.integers(least, max(least, int(counts.min()))))
    scheme = Scheme("labels-per-client", labels=each)
    if -(-clients * each // len(kinds)) > counts.min():
        return
    shares = partition_by(scheme, labels, clients, seed)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(labels)))
    owned = [set(labels[share].tolist()) for share in shares]
    assert {len(mine) for mine in owned} == {each}
    holders = [sum(kind in mine for mine in owned) for kind in kinds]
    assert max(holders) - min(holders) <= 1
    again = partition_by(scheme, labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


@pytest.mark.parametrize(("kinds", "each"), [(10, 2), (10, 5), (100, 20), (100, 50)])
def test_the_l_labels_of_fedrolex_use_every_sample_once(kinds: int, each: int) -> None:
    """CIFAR-10 with L = 2 and 5, CIFAR-100 with L = 20 and 50, for 100 clients."""
    labels = np.random.default_rng(0).permutation(np.arange(50_000) % kinds)
    shares = partition_by(Scheme("labels-per-client", labels=each), labels, 100, seed=1)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(50_000))
    assert {len(np.unique(labels[share])) for share in shares} == {each}
    assert {len(share) for share in shares} == {500}


def test_clients_have_disjoint_classes_where_there_are_enough() -> None:
    labels = np.arange(100) % 10
    owned = [set(labels[share]) for share in partition_by(Scheme("labels-per-client", labels=2), labels, 5, seed=1)]
    assert sum(map(len, owned)) == len(set[int]().union(*owned)) == 10


def test_a_class_with_fewer_samples_than_clients_is_refused() -> None:
    labels = np.array([0, 0, 0, 0, 1])
    with pytest.raises(ExperimentError, match="2 clients share class 1, which has 1 samples"):
        partition_by(Scheme("labels-per-client", labels=2), labels, 2, seed=0)


def test_clients_that_overlap_need_no_more_samples_than_one() -> None:
    labels = np.repeat(np.arange(3), 20)
    scheme = Scheme("per-class", per_class=15, overlap=True)
    shares = partition_by(scheme, labels, 4, seed=0)
    assert [np.bincount(labels[share]).tolist() for share in shares] == [[15, 15, 15]] * 4
    assert all(len(set(share)) == 45 for share in shares)
    assert len({share.tobytes() for share in shares}) == 4


def test_clients_that_overlap_can_have_more_samples_than_there_are() -> None:
    labels = np.arange(500) % 10
    scheme = Scheme("per-class", per_class=10, overlap=True, min_samples=100)
    assert [len(share) for share in partition_by(scheme, labels, 10, 0)] == [100] * 10


def test_the_usual_least_size_gives_way_to_an_equal_share() -> None:
    """An experiment that sets no least size runs with any number of clients; one that sets it is refused."""
    labels = np.arange(30) % 3
    sizes = [len(share) for share in partition_by(Scheme("dirichlet", alpha=0.1), labels, 6, seed=0)]
    assert min(sizes) >= 5
    with pytest.raises(ExperimentError, match="min_samples = 10: 6 clients"):
        partition_by(Scheme("dirichlet", alpha=0.1, min_samples=10), labels, 6, seed=0)


def test_all_classes_where_none_are_said() -> None:
    labels = np.arange(60) % 6
    for share in partition_by(Scheme("per-class", per_class=2), labels, 5, 0):
        assert np.bincount(labels[share]).tolist() == [2] * 6


@given(st.integers(1, 9), seeds, st.integers(1, 30), st.integers(40, 80))
def test_each_person_has_one_client(clients: int, seed: int, persons: int, samples: int) -> None:
    subjects = np.random.default_rng(seed).integers(0, persons, samples)
    if len(set(subjects)) < clients:
        return
    shares = partition_by(Scheme("natural", subjects=subjects), subjects, clients, 0)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(subjects)))
    owners = [set(subjects[share]) for share in shares]
    assert sum(map(len, owners)) == len(set(subjects))


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        (Scheme("subject"), "does not list its samples' persons"),
        (Scheme("subject", subjects=np.zeros(60, int)), "need as many persons; there are 1"),
        (Scheme("per-class", per_class=20), "need 40 samples of class 0, but there are 10"),
        (Scheme("per-class", per_class=1, classes=(2, 9)), "has 6 classes"),
        (Scheme("labels-per-client", labels=2), "labels = 2: the data set has 6 classes.* choose 3 to 6"),
        (Scheme("labels-per-client", labels=7), "labels = 7: the data set has 6 classes"),
        (Scheme("uniform", min_samples=31), "min_samples = 31: 2 clients"),
        (Scheme("per-class", per_class=1, min_samples=7), "min_samples = 7: client 0 would have 6 samples"),
    ],
)
def test_shares_that_cannot_be(scheme: Scheme, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        partition_by(scheme, np.arange(60) % 6, 2, 0)
