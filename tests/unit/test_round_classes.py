"""The accuracy on classes that a round had samples of, and on the others."""

from __future__ import annotations

import numpy as np
from round_classes import SplitAccuracy, split_accuracy


def test_classes_below_a_hundredth_are_missing() -> None:
    samples = np.array([[99, 101, 0], [1, 100, 100]])
    accuracy = np.array([[0.5, 0.75, 0.0], [0.25, 1.0, 0.75]])
    assert split_accuracy(samples, accuracy) == SplitAccuracy(1.0, 0.125, 0.75)


def test_without_a_missing_class_there_is_no_such_accuracy() -> None:
    found = split_accuracy(np.full((2, 3), 5), np.full((2, 3), 0.5))
    assert found == SplitAccuracy(0.0, None, 0.5)
