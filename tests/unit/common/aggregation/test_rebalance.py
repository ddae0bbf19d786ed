"""FedReb's rebalanced data set: what is copied, what an augmentation receives, and on which scale its copies are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.rebalance import rebalance_examples
from fedquilt_common.datasets.normalise import normalise_samples
from fedquilt_common.experiment.data_section import Normalise
from fedquilt_common.stored_samples import as_samples
from fedquilt_common.types import Examples

BYTES = np.random.default_rng(0).integers(1, 256, (4, 2, 3, 3), dtype=np.uint8)
NORMALISE = Normalise.model_validate({"mean": [0.5, 0.25], "std": [0.5, 0.125]})
BLACK = np.array([-1, -2], np.float32)[:, None, None]


def test_an_augmentation_changes_samples_before_they_are_normalised() -> None:
    """As ``transforms`` of images do: their black is 0, in every channel."""
    seen: list[NDArray[Any]] = []

    def blacken(x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        seen.append(x)
        return np.zeros_like(x)

    data = Examples(normalise_samples(as_samples(BYTES, 255.0), NORMALISE), np.array([0, 0, 0, 1]))
    made = rebalance_examples(data, 3, blacken, np.random.default_rng(0))
    assert made.effective == 4
    np.testing.assert_array_equal(seen[0], np.divide(BYTES[[3, 3]], np.float32(255), dtype=np.float32))
    np.testing.assert_array_equal(made.examples.x[:4], np.asarray(data.x))
    np.testing.assert_array_equal(made.examples.x[4:], np.broadcast_to(BLACK, (2, 2, 3, 3)))
    assert made.examples.y.tolist() == [0, 0, 0, 1, 1, 1]


def test_all_samples_of_a_class_are_copied_equally_often() -> None:
    """23 copies of 5 samples, 25 of 3."""
    numbers, classes = np.arange(8, dtype=np.float32), np.array([0] * 5 + [1] * 3)
    made = rebalance_examples(Examples(numbers, classes), 28, lambda x, rng: x, np.random.default_rng(0))
    copies = np.bincount(made.examples.x[made.effective :].astype(int))
    assert [sorted(copies[:5]), sorted(copies[5:])] == [[4, 4, 5, 5, 5], [8, 8, 9]]
