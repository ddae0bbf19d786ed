"""Averages of replies, block by block: memory does not grow with the number of clients or the size of a tensor.

Sums run in fp64 and in client order whatever the order of arrival, so the result is the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.codec import block
from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays, ClientId, Reply

BLOCK: Final = 1 << 18
"""Elements averaged at a time: 2 MiB of fp64, which stays in a processor's cache."""


def mean(replies: Mapping[ClientId, Reply], like: Arrays | None = None) -> dict[str, NDArray[Any]]:
    """The weighted mean of the replies' arrays, in the dtype of ``like`` (or of the first reply).

    Integer arrays (a norm layer's step counter) are rounded to the nearest integer.

    Raises:
        PayloadError: when there is no reply, or the weights do not sum to a positive finite number.
    """
    weights = _shares(replies)
    first = like if like is not None else replies[next(iter(weights))].arrays
    return {name: _mean_of(name, first[name], replies, weights) for name in first}


def _shares(replies: Mapping[ClientId, Reply]) -> dict[ClientId, float]:
    if not replies:
        raise PayloadError("there is no reply to average")
    given = [r.weight for r in replies.values()]
    total = math.fsum(given) if all(0 <= weight < math.inf for weight in given) else 0.0
    if total <= 0:
        raise PayloadError("the replies' weights must be finite, not negative and not all zero")
    return {client: replies[client].weight / total for client in sorted(replies)}


def _mean_of(
    name: str, like: NDArray[Any], replies: Mapping[ClientId, Reply], weights: Mapping[ClientId, float]
) -> NDArray[Any]:
    result = np.empty(like.shape, like.dtype)
    flat = result.reshape(-1)
    sums, products = np.empty(min(BLOCK, flat.size)), np.empty(min(BLOCK, flat.size))
    for start in range(0, flat.size, BLOCK):
        stop = min(start + BLOCK, flat.size)
        total, share = sums[: stop - start], products[: stop - start]
        total.fill(0.0)
        for client, weight in weights.items():
            np.multiply(block(replies[client].arrays, name, start, stop), weight, out=share, dtype=np.float64)
            total += share
        flat[start:stop] = total if like.dtype.kind == "f" else np.rint(total)
    return result
