"""The batches in which a model is evaluated; they do not change its outputs, but the memory that they take."""

from __future__ import annotations

import math
from typing import Final

from fedquilt_common.types import Examples

EVALUATION_BATCH: Final = 64
"""Samples; few enough that a layer's outputs stay in the processor's cache."""
MOST_NUMBERS: Final = 1 << 22
"""Numbers of a batch of evaluation: of large images it has fewer samples, so that a board's memory suffices."""
STATISTICS_BATCH: Final = 512
"""Samples in a batch of ``Learner.statistics``; it is part of the results, so boards must not choose it."""


def evaluation_batches(data: Examples) -> list[slice]:
    """Return the samples of each batch of evaluation, at least one each, for samples of shape (n, ...)."""
    size = MOST_NUMBERS // max(1, math.prod(data.x.shape[1:]))
    return batch_slices(len(data), max(1, min(size, EVALUATION_BATCH)))


def batch_slices(count: int, size: int) -> list[slice]:
    """Divide ``count`` samples into batches of ``size``; the last one may have fewer."""
    return [slice(start, start + size) for start in range(0, count, size)]
