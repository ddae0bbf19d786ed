"""Soft labels: the same permutation on every board, mixup by its definition, the error of quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedquilt_common.aggregation.soft_labels import (
    Quantiser,
    confidence_weights,
    dissenting_labels,
    mean_labels,
    mixup,
    permutation,
    sharpen,
    softmax,
)
from fedquilt_common.algorithm_api import Reply

LABELS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=st.floats(-1e4, 1e4, width=32)
)


def test_the_permutation_is_the_same_on_every_board_and_version() -> None:
    assert permutation(7, 10).tolist() == [6, 3, 4, 9, 0, 2, 8, 7, 5, 1]
    assert sorted(permutation(2**62, 1000)) == list(range(1000))
    assert permutation(1, 50).tolist() != permutation(2, 50).tolist()


def test_mixup_is_a_share_of_each_sample_and_the_rest_of_another() -> None:
    x = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    other = x[permutation(5, 6)]
    np.testing.assert_allclose(mixup(x, 5, 0.3), 0.3 * x + 0.7 * other, rtol=1e-6)
    assert mixup(x, 5, 1.0).tobytes() == x.tobytes()
    assert mixup(x, 5, 0.0).tobytes() == other.tobytes()
    assert mixup(x, 5, 0.3).dtype == np.float32


@given(LABELS, st.integers(1, 16), st.sampled_from([("class", 0), ("sample", 1), ("tensor", None)]))
def test_a_label_comes_back_within_half_a_step_of_its_range(
    labels: NDArray[np.float32], bits: int, ranges: tuple[Any, int | None]
) -> None:
    quantiser = Quantiser(bits, ranges[0])
    arrays = quantiser.encode(labels)
    assert [str(x.dtype) for x in arrays.values()] == ["uint8", "float32"]
    assert {name: x.shape for name, x in arrays.items()} == quantiser.shapes(*labels.shape)
    again = quantiser.decode(arrays, labels.shape[1])
    step = np.ptp(labels, axis=ranges[1], keepdims=True) / (2**bits - 1)
    assert (np.abs(again - labels) <= step / 2 + 1e-6 * np.abs(labels).max() + 1e-6).all()


def test_a_class_whose_labels_are_all_the_same_keeps_them() -> None:
    labels = np.array([[1.5, 2.0], [1.5, -3.0]], np.float32)
    arrays = Quantiser().encode(labels)
    assert arrays["codes"][:, 0].tolist() == [0, 0]
    assert Quantiser().decode(arrays, 2).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("bits", "ranges", "size"),
    [(8, "class", 648), (4, "class", 348), (1, "tensor", 108), (12, "tensor", 908), (8, "sample", 1400)],
)
def test_bytes_of_a_hundred_labels_of_six_classes(bits: int, ranges: Any, size: int) -> None:
    arrays = Quantiser(bits, ranges).encode(np.random.default_rng(1).normal(size=(100, 6)).astype(np.float32))
    assert sum(x.nbytes for x in arrays.values()) == size


def replies(*accuracies: float) -> dict[int, Reply]:
    return {
        c: Reply({"logits": np.full((2, 2), c, np.float32)}, 7.0, {"accuracy": right})
        for c, right in enumerate(accuracies)
    }


def test_labels_weigh_by_accuracy_or_alike_whatever_the_samples() -> None:
    assert mean_labels(replies(0.25, 0.75), by_accuracy=True)["logits"].tolist() == [[0.75] * 2] * 2
    assert mean_labels(replies(0.25, 0.75), by_accuracy=False)["logits"].tolist() == [[0.5] * 2] * 2
    assert mean_labels(replies(0.0, 0.0), by_accuracy=True)["logits"].tolist() == [[0.5] * 2] * 2


def test_where_all_clients_are_indifferent_or_agree_nothing_is_divided_by_zero() -> None:
    flat = np.zeros((3, 4, 5), np.float32)
    assert confidence_weights(flat).tolist() == [[0.0] * 4] * 3
    sure = np.tile(np.eye(5, dtype=np.float32)[:4], (3, 1, 1))
    labels, exist = dissenting_labels(sure, np.arange(4))
    assert not exist.any()
    assert not labels.any()


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0])
def test_sharpening_keeps_probabilities(temperature: float) -> None:
    found = sharpen(softmax(np.random.default_rng(2).normal(size=(9, 4))), temperature)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(found).all()
