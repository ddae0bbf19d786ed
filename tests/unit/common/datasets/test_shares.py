"""Who has which samples, and who keeps which of them for testing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.algorithm_api import Declaration
from fedquilt_common.datasets.shares import (
    Share,
    Shares,
    digest_shares,
    holdout_of,
    select_own_labels,
    shares,
    split_samples,
    take_labels,
    take_samples,
)
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import Dataset, Examples


def examples(count: int, first: int = 0, classes: int = 5) -> Examples:
    return Examples(np.arange(first, first + count, dtype=np.float32)[:, None], np.arange(count) % classes)


DATA = Dataset("made", examples(100), examples(40, 100), 5)


def experiment(clients: int = 4, **data: Any) -> Experiment:
    raw = {"name": "x", "seed": 3, "data": {"set": "digits", "clients": clients, **data},
           "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}  # fmt: skip
    return Experiment.model_validate(raw)


def everything(cut: Any) -> list[int]:
    return sorted(int(i) for share in cut for index in (share.train, share.test) for i in index)


def test_without_a_holdout_all_is_for_training() -> None:
    cut = shares(experiment(), DATA)
    assert [len(share.test) for share in cut] == [0] * 4
    assert everything(cut) == list(range(100))


@given(st.floats(0.01, 0.99), st.booleans(), st.integers(1, 60), st.integers(0, 9))
def test_each_client_keeps_its_part(holdout: float, mixed: bool, clients: int, seed: int) -> None:
    asked = experiment(clients, mixed=mixed).model_copy(update={"seed": seed})
    cut = shares(asked, DATA, holdout)
    assert everything(cut) == list(range(140 if mixed else 100))
    for share in cut:
        size = len(share.train) + len(share.test)
        assert len(share.train) >= 1
        assert len(share.train) == max(1, int(np.floor(round((1 - holdout) * size, 9))))
        assert (np.diff(share.train) > 0).all()
        assert (np.diff(share.test) > 0).all()
    assert digest_shares(cut) == digest_shares(shares(asked, DATA, holdout))


def test_three_quarters_as_in_the_thesis() -> None:
    cut = shares(experiment(1, mixed=True), DATA, 0.25)
    assert (len(cut[0].train), len(cut[0].test)) == (105, 35)
    assert not set(cut[0].test) & set(cut[0].train)


@pytest.mark.parametrize(("holdout", "count", "tested"), [(0.56, 25, 14), (0.34, 50, 17), (0.8, 40, 32)])
def test_binary_fractions_move_no_sample_to_the_test(holdout: float, count: int, tested: int) -> None:
    """The number 1 - 0.56 is slightly less than 0.44, so that 25 times it is less than 11."""
    shard = split_samples(examples(count), holdout, 3, 0)
    assert (len(shard.train), len(shard.test)) == (count - tested, tested)
    all_of_them = {"scheme": "per-class", "per_class": count // 5, "overlap": True}
    (cut,) = shares(experiment(1, partition=all_of_them), replace(DATA, train=examples(count)), holdout)
    assert len(cut.test) == tested


def test_a_client_with_one_sample_trains_on_it() -> None:
    tiny = Dataset("tiny", examples(3), examples(1), 5)
    assert [(len(s.train), len(s.test)) for s in shares(experiment(3), tiny, 0.5)] == [(1, 0)] * 3


@given(st.floats(0.0, 0.99), st.integers(1, 30), st.integers(1, 15), st.integers(0, 9))
def test_nobody_trains_on_a_sample_that_another_client_tests_on(
    holdout: float, clients: int, each: int, seed: int
) -> None:
    part = {"scheme": "per-class", "per_class": each, "overlap": True}
    asked = experiment(clients, partition=part).model_copy(update={"seed": seed})
    cut = shares(asked, DATA, holdout)
    trained, tested = ({i for s in cut for i in getattr(s, kind).tolist()} for kind in ("train", "test"))
    assert not trained & tested
    assert holdout > 0 or not tested
    assert all(len(s.train) >= 1 and len(s.train) + len(s.test) == 5 * each for s in cut)
    assert digest_shares(cut) == digest_shares(shares(asked, DATA, holdout))


def test_clients_that_overlap_keep_about_their_part() -> None:
    part = {"scheme": "per-class", "per_class": 10, "overlap": True}
    cut = shares(experiment(20, mixed=True, partition=part), DATA, 0.25)
    assert 0.15 < np.mean([len(share.test) / 50 for share in cut]) < 0.35


@pytest.mark.parametrize("part", [{}, {"scheme": "dirichlet", "alpha": 1.0, "bins": 2}])
def test_public_samples_leave_some_for_the_clients(part: dict[str, Any]) -> None:
    made = Dataset("made", Examples(DATA.train.x, DATA.train.x), DATA.test, 0)
    with pytest.raises(ExperimentError, match=r"data\.public\.samples = 100: all samples are public"):
        shares(experiment(public={"samples": 100}, partition=part), made)


def test_persons_of_mixed_samples_are_not_known() -> None:
    natural = experiment(2, mixed=True, partition={"scheme": "natural"})
    known = Dataset("made", examples(100), examples(40, 100), 5, np.arange(100) % 9)
    with pytest.raises(ExperimentError, match=r"data\.mixed = True: .*scheme = natural"):
        shares(natural, known, 0.25)


def test_the_first_of_more_shares_than_clients() -> None:
    twenty = shares(experiment(20), DATA, 0.25)
    four = shares(experiment(4, partition={"shares": 20}), DATA, 0.25)
    assert len(four) == 20  # the clients', then those that no client has
    for one, other in zip(four, twenty, strict=True):
        assert np.array_equal(one.train, other.train)
        assert np.array_equal(one.test, other.test)


def test_many_shares_are_a_sequence_of_shares() -> None:
    parts = [([1, 2, 9], [4]), ([], []), ([7], []), ([3], [5, 6])]
    packed = Shares.pack(Share(np.array(train, np.int64), np.array(test, np.int64)) for train, test in parts)
    found = [(share.train.tolist(), share.test.tolist()) for share in packed]
    assert found == parts
    assert (len(packed), packed[-1].test.tolist()) == (4, [5, 6])
    assert [share.train.tolist() for share in packed[1:3]] == [[], [7]]
    assert len(packed[:0]) == 0
    with pytest.raises(IndexError):
        packed[4]


def test_samples_of_both_official_splits() -> None:
    found = take_samples(DATA, np.array([3, 99, 100, 139]))
    assert found.x[:, 0].tolist() == [3, 99, 100, 139]
    assert found.y.tolist() == [3, 4, 0, 4]
    assert len(take_samples(DATA, np.array([], np.int64))) == 0


def test_the_digest_sees_who_tests_on_what() -> None:
    def one(train: list[int], test: list[int]) -> Share:
        return Share(np.array(train, np.int64), np.array(test, np.int64))

    cuts = [[one([1, 2], [])], [one([1], [2])], [one([2], [1])], [one([1], []), one([2], [])]]
    assert len({digest_shares(cut) for cut in cuts}) == 4


@dataclass(frozen=True)
class Personal:
    declares: ClassVar[Declaration] = Declaration(holdout=0.25)


@dataclass(frozen=True)
class Central:
    pass


@pytest.mark.parametrize(
    ("algorithm", "data", "expected"),
    [
        (Personal(), {}, 0.25),
        (Personal(), {"holdout": 0.5}, 0.5),
        (Personal(), {"holdout": 0.0}, 0.0),
        (Personal(), {"mixed": True}, 0.25),
        (Central(), {}, 0.0),
        (Central(), {"holdout": 0.0}, 0.0),
        (Personal(), {"local_test": "own-labels"}, 0.0),
    ],
)
def test_how_much_is_kept(algorithm: Any, data: dict[str, Any], expected: float) -> None:
    assert holdout_of(experiment(**data), algorithm) == expected


@pytest.mark.parametrize(
    ("algorithm", "data", "reason"),
    [
        (Central(), {"holdout": 0.25}, "data.holdout = 0.25: 'fedavg' is evaluated by the coordinator"),
        (Personal(), {"mixed": True, "holdout": 0.0}, "data.mixed = True: .* set data.holdout"),
        (Central(), {"mixed": True}, r"data\.mixed = True: the coordinator tests .* 'fedavg' .* set it to false"),
    ],
)
def test_what_cannot_be_kept(algorithm: Any, data: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason):
        holdout_of(experiment(**data), algorithm)


def test_a_model_that_the_coordinator_tests_needs_the_official_test_samples() -> None:
    """DS-FL has a model for all; where the clients share the test samples out, nobody could test it."""

    class WithItsOwn:
        declares: ClassVar[Declaration] = Declaration(0.0, own_models=True, coordinator_tests=True)

    mixed = experiment(mixed=True, holdout=0.25)
    with pytest.raises(ExperimentError, match=r"data\.mixed = True: the coordinator tests .* 'fedavg'"):
        holdout_of(mixed, WithItsOwn())  # type: ignore[arg-type]
    assert holdout_of(experiment(holdout=0.25), WithItsOwn()) == 0.25  # type: ignore[arg-type]


def test_some_of_many_shares_are_a_view_of_them() -> None:
    all_ = Shares.pack(Share(np.arange(n), np.arange(n, n + 2)) for n in range(6))
    for some in (slice(2, 5), slice(None, None, -2), slice(4, 1)):
        assert [one.train.tolist() for one in all_[some]] == [list(range(n)) for n in range(6)[some]]
        assert [one.test.tolist() for one in all_[some]] == [[n, n + 1] for n in range(6)[some]]
    assert np.shares_memory(all_[2:5][0].train, all_[2].train)


def test_labels_are_taken_without_the_samples() -> None:
    for index in (np.array([3, 7]), np.array([99, 100, 139])):
        assert take_labels(DATA, index).tolist() == take_samples(DATA, index).y.tolist()


def test_own_labels_are_the_official_samples_of_the_classes_that_a_client_has() -> None:
    found = select_own_labels(DATA.test, np.array([4, 1, 4]))
    assert found.y.tolist() == [1, 4] * 8
    assert found.x[:2, 0].tolist() == [101, 104]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"holdout": 0.25}, "holdout"),
        ({"holdout": 0.25, "mixed": True}, "mixed"),
        ({"label_noise": {"ratio": 0.5}}, "label_noise"),
    ],
)
def test_own_labels_leave_the_clients_samples_for_training(data: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        experiment(local_test="own-labels", **data)
