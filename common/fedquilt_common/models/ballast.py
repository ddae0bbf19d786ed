"""Not a model: so many megabytes of numbers, for measuring the round without training."""

from __future__ import annotations

import numpy as np

from fedquilt_common.types import Arrays

_TENSORS = 8


def ballast(megabytes: float) -> Arrays:
    """``megabytes`` (10**6 bytes) of fp32 zeros in eight tensors."""
    numbers = max(_TENSORS, round(megabytes * 1e6 / 4))
    sizes = [numbers // _TENSORS + (i < numbers % _TENSORS) for i in range(_TENSORS)]
    return {f"part{i}.weight": np.zeros(size, np.float32) for i, size in enumerate(sizes)}
