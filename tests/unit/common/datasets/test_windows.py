"""Standardising the channels of windows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fedquilt_common.datasets.windows import standardise_channels


@pytest.mark.parametrize("shape", [(1000, 3, 700), (5, 1, 600_000), (40, 2)])
def test_each_channel_gets_mean_0_and_variance_1(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    train = (rng.normal(size=shape) * 9 + 1000).astype(np.float32)
    test = train[:2] + np.float32(1)
    expected = [train.copy(), test.copy()]
    for channel in range(shape[1]):
        mean, spread = (getattr(train[:, channel], name)(dtype=np.float64) for name in ("mean", "std"))
        for part in expected:
            part[:, channel] = (part[:, channel] - np.float32(mean)) / np.float32(spread)
    standardise_channels(train, test)
    np.testing.assert_array_equal(train, expected[0])
    np.testing.assert_array_equal(test, expected[1])


def test_a_constant_channel_becomes_0() -> None:
    train, test = np.full((4, 1, 3), 7, np.float32), np.full((1, 1, 3), 9, np.float32)
    standardise_channels(train, test)
    assert (train.max(), test.min()) == (0, 2)


def test_standardising_takes_little_memory_beside_the_windows() -> None:
    train = np.random.default_rng(3).random((4000, 1, 1000), np.float32)
    tracemalloc.start()
    try:
        standardise_channels(train, train[:1].copy())
        assert tracemalloc.get_traced_memory()[1] < train.nbytes // 2
    finally:
        tracemalloc.stop()
