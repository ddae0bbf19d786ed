"""Cut time series into windows, and scale them by what the training windows show."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

_BLOCK: Final = 1 << 18
"""Numbers that are converted to float64 at a time."""
HALF_SHARED: Final = (
    "neighbouring windows share half their rows, so samples that clients keep for testing (data.holdout) share rows "
    "with training samples"
)
"""Note of data sets whose windows overlap by half."""
HeldOutGroup = TypeVar("HeldOutGroup", int, str)


def cut_windows(rows: NDArray[np.float32], length: int, stride: int) -> NDArray[np.float32]:
    """Cut a time series into windows; rows after the last whole window are left out.

    Args:
        rows: of shape (times, channels).
        length: rows of a window.
        stride: rows from the start of a window to the start of the next one.

    Returns:
        Shape (n, channels, length), copied; n is 0 if there are fewer rows than ``length``.
    """
    if len(rows) < length:
        return np.empty((0, rows.shape[1], length), dtype=rows.dtype)
    windows: NDArray[np.float32] = np.lib.stride_tricks.sliding_window_view(rows, length, axis=0)[::stride].copy()
    return windows


def standardise_channels(train: NDArray[np.float32], test: NDArray[np.float32]) -> None:
    """Give each channel of the training windows mean 0 and variance 1, in place; scale the test windows alike.

    The training windows alone determine mean and variance. A constant channel becomes 0 in the training windows.

    Args:
        train: of shape (n, channels, ...).
        test: of shape (m, channels, ...).
    """
    for channel in range(train.shape[1]):
        mean = train[:, channel].mean(dtype=np.float64)
        spread = _deviation(train[:, channel], mean)
        for part in (train, test):
            part[:, channel] -= np.float32(mean)
            part[:, channel] /= np.float32(spread if spread > 1e-9 else 1)


def _deviation(values: NDArray[np.float32], mean: np.float64) -> float:
    """Standard deviation of values of shape (n, ...) in float64; ``values.std`` would first copy all of them to it."""
    step = max(1, _BLOCK // math.prod(values.shape[1:]))
    blocks = (values[start : start + step] for start in range(0, len(values), step))
    squares = (np.square(np.subtract(block, mean, dtype=np.float64)).sum() for block in blocks)
    return math.sqrt(math.fsum(squares) / values.size)


def hold_out(groups: Iterable[HeldOutGroup], share: float) -> set[HeldOutGroup]:
    """Choose groups, such as persons, whose samples are for testing.

    The SHA-256 of a group's text decides, so the choice is the same everywhere and seeds have no part in it.

    Args:
        groups: all of them.
        share: of the groups that are chosen, at least one of them.
    """
    ranked = sorted(set(groups), key=lambda group: hashlib.sha256(str(group).encode()).digest())
    return set(ranked[: max(1, round(share * len(ranked)))])
