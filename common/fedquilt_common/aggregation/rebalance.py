"""FedReb's rebalanced data set: the same number of samples of each class that a client has.

FedReb thesis, algorithm 1 and equation 3.4. Of a class with more samples than the threshold t, t are drawn at random. A
class with fewer is filled up with augmented copies. *Effective* samples are all but these copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.stored_samples import change_unscaled
from fedquilt_common.types import Examples

Counts = NDArray[np.int64]
"""Samples of each class, shape (classes,)."""
ThresholdRule = Literal["mean", "median", "max", "min", "second-min"]
ThresholdRounding = Literal["half-up", "half-even", "floor", "ceil"]
Augment = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]
"""(samples of shape (n, ...), random generator) -> changed samples of the same shape and dtype."""
_ROUND: dict[str, Callable[[float], int]] = {
    "half-up": lambda x: math.floor(x + 0.5), "half-even": round, "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip


@dataclass(frozen=True)
class RebalancedExamples:
    """A rebalanced data set.

    Attributes:
        examples: the samples, shape (n, *input_shape); the client's own first, then the augmented copies.
        effective: number of the client's own samples among them.
    """

    examples: Examples
    effective: int


def check_threshold(threshold: object) -> None:
    """Check a threshold.

    Raises:
        ValueError: it is neither a rule nor a whole number from 1.
    """
    number = type(threshold) is int and threshold >= 1
    if not number and threshold not in get_args(ThresholdRule):
        raise ValueError(
            f"threshold = {threshold!r}: must be mean, median, max, min, second-min or a number of samples from 1"
        )


def class_threshold(
    counts: Counts, rule: ThresholdRule | int, rounding: ThresholdRounding = "half-up", *, distinct: bool = True
) -> int:
    """Return the number of samples of each class in the rebalanced data set.

    Args:
        counts: the client's samples of each class, shape (classes,); empty classes do not count.
        rule: computes the threshold from the counts; a number is returned as it is, even above every count.
        rounding: of ``mean`` and ``median``.
        distinct: ``second-min`` takes the least count that differs from the minimum, if there is one.

    Returns:
        The threshold, at least 1.
    """
    if isinstance(rule, int):
        return rule
    present = np.sort(counts[counts > 0])
    ranked = np.unique(present) if distinct else present
    exact = {
        "mean": present.mean(), "median": np.median(present), "max": present.max(), "min": present.min(),
        "second-min": ranked[min(1, len(ranked) - 1)],
    }  # fmt: skip
    return max(1, _ROUND[rounding](float(exact[rule])))


def rebalance_examples(
    data: Examples, threshold: int, augment: Augment, rng: np.random.Generator
) -> RebalancedExamples:
    """Return the rebalanced data set of a client.

    Args:
        data: the client's samples, shape (n, *input_shape), with classes of shape (n,).
        threshold: number of samples of each class that the client has.
        augment: makes changed copies of samples, as they are before ``data.normalise``: an image's black is 0 there.
        rng: draws samples and augmentations.
    """
    own_indices, copied_indices = [], []
    for kind in np.unique(data.y):
        members = rng.permutation(np.flatnonzero(data.y == kind))
        own_indices.append(np.sort(members[:threshold]))
        # np.resize repeats the members in turn, so that all are copied equally often
        copied_indices.append(np.resize(members, max(0, threshold - len(members))))
    own, copied = np.concatenate(own_indices), np.concatenate(copied_indices)
    x, y = data.x[own], data.y[own]
    if len(copied):
        copies = data.take(copied)
        x = np.concatenate([x, change_unscaled(copies.x, lambda unscaled: augment(unscaled, rng))])
        y = np.concatenate([y, copies.y])
    return RebalancedExamples(Examples(x, y), len(own))
