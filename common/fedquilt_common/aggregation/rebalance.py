"""FedReb's rebalanced data set: as many samples of each class that a client has.

FedReb thesis, algorithm 1 and equation 3.4. Classes with more samples than the threshold t give t of them at random;
classes with fewer are filled up with augmented copies. *Effective* samples are those that are no such copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.types import Examples

Counts = NDArray[np.int64]
Rule = Literal["mean", "median", "max", "min", "second-min"]
Rounding = Literal["half-up", "half-even", "floor", "ceil"]
Augment = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]
"""(samples, shape (n, ...); random generator) -> as many changed samples of the same shape and dtype."""
_ROUND: dict[str, Callable[[float], int]] = {
    "half-up": lambda x: math.floor(x + 0.5), "half-even": round, "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip


@dataclass(frozen=True)
class RebalancedExamples:
    """``examples``: the data set; ``effective``: how many of its samples are the client's own."""

    examples: Examples
    effective: int


def check_threshold(threshold: object) -> None:
    """Raises ValueError unless they are a rule, or a whole number from 1, and a way to round."""
    number = type(threshold) is int and threshold >= 1
    if not number and threshold not in ("mean", "median", "max", "min", "second-min"):
        raise ValueError(
            f"threshold = {threshold!r}: must be mean, median, max, min, second-min or a number of samples from 1"
        )


def threshold_of(counts: Counts, rule: Rule | int, rounding: Rounding = "half-up", *, distinct: bool = True) -> int:
    """Samples of each class in the rebalanced data set, from the ``counts`` of classes that are not empty; at least 1.

    A number stands for itself, be it above every class. ``distinct``: the second-least count differs from the least,
    where there is one that does.
    """
    if isinstance(rule, int):
        return rule
    there = np.sort(counts[counts > 0])
    ranked = np.unique(there) if distinct else there
    exact = {
        "mean": there.mean(), "median": np.median(there), "max": there.max(), "min": there.min(),
        "second-min": ranked[min(1, len(ranked) - 1)],
    }  # fmt: skip
    return max(1, _ROUND[rounding](float(exact[rule])))


def rebalance_examples(
    data: Examples, threshold: int, augment: Augment, rng: np.random.Generator
) -> RebalancedExamples:
    """``threshold`` samples of each class that ``data`` has; the own ones first, then the augmented ones."""
    kept, copied = [], []
    for kind in np.unique(data.y):
        members = rng.permutation(np.flatnonzero(data.y == kind))
        kept.append(np.sort(members[:threshold]))
        copied.append(np.resize(members, max(0, threshold - len(members))))  # each as often as the others
    own, source = np.concatenate(kept), np.concatenate(copied)
    x, y = data.x[own], data.y[own]
    if len(source):
        x = np.concatenate([x, augment(data.x[source], rng)])
        y = np.concatenate([y, data.y[source]])
    return RebalancedExamples(Examples(x, y), len(own))
