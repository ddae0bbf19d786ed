"""Arrays of a given size that stand for a model, to measure rounds without training."""

from __future__ import annotations

import numpy as np

from fedquilt_common.types import Arrays

_TENSORS = 8


def ballast(megabytes: float) -> Arrays:
    """Make ``megabytes`` (10**6 bytes) of zeros: eight float32 arrays of shape (numbers,)."""
    numbers = max(_TENSORS, round(megabytes * 1e6 / 4))
    sizes = [numbers // _TENSORS + (i < numbers % _TENSORS) for i in range(_TENSORS)]
    return {f"part{i}.weight": np.zeros(size, np.float32) for i, size in enumerate(sizes)}
