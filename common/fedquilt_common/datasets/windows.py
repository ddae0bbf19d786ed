"""Cut time series into windows, and scale them by what the training windows show."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
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
_Time = TypeVar("_Time", np.int64, np.float64)


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


def split_at_gaps(times: NDArray[np.float64], rows: NDArray[np.float32], gap: float) -> list[NDArray[np.float32]]:
    """Split a time series wherever two readings lie further apart than ``gap``.

    Args:
        times: of the readings, ascending, shape (n,); in the unit of ``gap``.
        rows: of shape (n, channels).
        gap: the largest time between neighbours.
    """
    return np.split(rows, np.flatnonzero(np.diff(times) > gap) + 1)


def find_nearest(times: NDArray[_Time], others: NDArray[_Time]) -> NDArray[np.int64]:
    """Return the position in ``others`` that is nearest to each of ``times``, the earlier one if two are equally near.

    Args:
        times: shape (n,).
        others: shape (m,), ascending, not empty.
    """
    after = np.searchsorted(others, times).clip(max=len(others) - 1)
    before = (after - 1).clip(min=0)
    is_before = np.abs(times - others[before]) <= np.abs(others[after] - times)
    found: NDArray[np.int64] = np.where(is_before, before, after).astype(np.int64)
    return found


def put_in_order(times: NDArray[_Time], repairs: Counter[str]) -> NDArray[np.int64]:
    """Return the position of the first reading of each time, in ascending order of the times.

    Args:
        times: of the readings, in any order, shape (n,).
        repairs: counts the readings that were out of order, and those that are left out.
    """
    repairs["rows out of order sorted"] += int((times[1:] < times[:-1]).sum())
    found, first = np.unique(times, return_index=True)
    repairs["rows with a repeated time left out"] += len(times) - len(found)
    return first


def resample(
    times: NDArray[np.float64], rows: NDArray[np.float64], period: float, gap: float
) -> list[NDArray[np.float32]]:
    """Interpolate a time series at equal distances, without crossing gaps.

    Args:
        times: of the readings, ascending, shape (n,).
        rows: of shape (n, channels).
        period: time between two rows of the result, in the unit of ``times``.
        gap: readings that lie further apart are in different parts.

    Returns:
        For each part between gaps its rows, of shape (m, channels), from its first reading on.
    """
    bounds = [0, *(np.flatnonzero(np.diff(times) > gap) + 1).tolist(), len(times)]
    parts = []
    for start, end in itertools.pairwise(bounds):
        own = times[start:end]
        grid = own[0] + period * np.arange(int((own[-1] - own[0]) / period + 1e-6) + 1)
        columns = [np.interp(grid, own, rows[start:end, channel]) for channel in range(rows.shape[1])]
        parts.append(np.column_stack(columns).astype(np.float32))
    return parts


def scale_channels(train: NDArray[np.float32], test: NDArray[np.float32]) -> None:
    """Scale each channel of the training windows to 0 to 1, in place; scale the test windows alike.

    The training windows alone determine the least and the greatest value, so test windows can lie outside. A constant
    channel becomes 0 in the training windows.

    Args:
        train: of shape (n, channels, ...).
        test: of shape (m, channels, ...).
    """
    for channel in range(train.shape[1]):
        low, high = train[:, channel].min(), train[:, channel].max()
        for part in (train, test):
            part[:, channel] -= low
            part[:, channel] /= high - low if high > low else np.float32(1)


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
