"""The weighted mean of replies and partial sums: the same bits, however the replies are grouped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import Filling, round_integers, run_steps
from fedquilt_common.aggregation.exact_sum import ExactSum
from fedquilt_common.partial_sums.partial_sum import SUM_BLOCK, PartialSum, WeightedArrays, add_rows, weigh_base
from fedquilt_common.types import Arrays


@dataclass(frozen=True)
class GroupedReplies:
    """What the mean is made of.

    Attributes:
        singles: replies that travelled alone, with their weights.
        sums: partial sums, each with the arrays that its members received.
        weights: of all clients, those of the sums included.
    """

    singles: WeightedArrays
    sums: Sequence[tuple[PartialSum, Arrays]]
    weights: Sequence[float]


def exact_mean(replies: GroupedReplies, empty: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Fill arrays with the exact weighted mean: the exact sum, rounded to fp64, over that of the weights.

    A mean beyond its dtype, which only a forged partial sum has, becomes the dtype's largest number.

    Args:
        replies: at least one.
        empty: new arrays, in the shapes and dtypes of the mean. Integers are rounded to the nearest.

    Returns:
        ``empty``.

    Raises:
        PayloadError: a sum is not valid, or beyond fp64.
    """
    weight = math.fsum(replies.weights)
    run_steps([step for name in empty for step in _plan(name, empty[name].reshape(-1), replies, weight)], empty)
    return empty


def _plan(name: str, result: NDArray[Any], replies: GroupedReplies, weight: float) -> Iterator[Filling]:
    """Return the steps that fill an array, a block each."""
    for start in range(0, result.size, SUM_BLOCK):
        part = result[start : start + SUM_BLOCK]
        yield partial(_fill, name, part, start, result.size, replies, weight)


def _fill(name: str, part: NDArray[Any], start: int, size: int, replies: GroupedReplies, weight: float) -> None:
    total = ExactSum(part.size)
    add_rows(total, name, start, replies.singles)
    for one, base in replies.sums:
        total.merge(one.block(name, start, size))
        add_rows(total, name, start, weigh_base(base, name, size, one.weights, 1.0))
    part[:] = round_integers(np.clip(total.round() / weight, *_limits(part.dtype)), part.dtype)


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the least and the largest number of fp64 that a dtype holds; 0 and 1 for bools."""
    if dtype.kind == "b":
        return 0.0, 1.0
    kind = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low, high = float(kind.min), float(kind.max)
    return low, high if int(high) <= kind.max else math.nextafter(high, 0.0)
