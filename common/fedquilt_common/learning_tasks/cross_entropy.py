"""Cross entropy in numpy, for evaluation; training uses torch's."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGEST_SUM: Final = 1e12
"""Greatest sum of losses that counts hold, so that they stay finite."""
_BLOCK: Final = 1 << 20
"""Numbers that are converted to float64 at a time: 8 MiB."""


def sum_cross_entropy(logits: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    """Return the sum of the cross entropy over rows, computed in float64.

    Args:
        logits: shape (n, classes).
        y: the right class of each row, shape (n,).

    Returns:
        At most ``LARGEST_SUM``, even where logits are not finite.
    """
    rows = max(1, _BLOCK // max(1, logits.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        total = sum(_sum_of_block(logits[at : at + rows], y[at : at + rows]) for at in range(0, len(y), rows))
    return bounded_sum(total)


def bounded_sum(total: float) -> float:
    """Return a sum of losses as a number from 0 to ``LARGEST_SUM``; NaN becomes the largest."""
    return min(max(total, 0.0), LARGEST_SUM) if not math.isnan(total) else LARGEST_SUM


def _sum_of_block(logits: NDArray[Any], y: NDArray[np.int64]) -> float:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    right = np.take_along_axis(shifted, y[:, None], axis=1)[:, 0]
    return float((np.log(np.exp(shifted).sum(axis=1)) - right).sum())
