"""The batches in which a model is evaluated, and in which the statistics of static batch norms are measured."""

from __future__ import annotations

import math
from typing import Final

from fedquilt_common.types import Examples

EVALUATION_BATCH: Final = 64
"""Samples; few enough that a layer's outputs stay in the processor's cache."""
MOST_NUMBERS: Final = 1 << 22
"""Numbers of a batch: of large images it has fewer samples, so that a board's memory suffices."""
STATISTICS_BATCH: Final = 512
"""Samples in a batch of ``Learner.statistics``. It changes the results, because norms normalise by the batch."""


def evaluation_batches(data: Examples) -> list[slice]:
    """Return the samples of each batch of evaluation, for samples of shape (n, ...); they do not change the outputs."""
    return _batches(data, EVALUATION_BATCH)


def statistics_batches(data: Examples) -> list[slice]:
    """Return the samples of each batch of ``Learner.statistics``; they depend on the shape (n, ...) of samples only."""
    return _batches(data, STATISTICS_BATCH)


def _batches(data: Examples, most: int) -> list[slice]:
    """Divide samples of shape (n, ...) into batches of at most ``most`` samples, at least one each."""
    size = max(1, min(most, MOST_NUMBERS // max(1, math.prod(data.x.shape[1:]))))
    return [slice(start, start + size) for start in range(0, len(data), size)]
