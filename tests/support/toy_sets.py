"""Small data sets of each learning task, made without files; experiments name them ``tests.support.toy_sets:NAME``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt_common.types import Dataset, Examples


def values(folder: Path | None = None) -> Dataset:
    """Regression: one number that is a linear function of four, with noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y = x @ np.array([0.4, -0.8, 0.2, 0.0], np.float32) + 0.5 + rng.normal(0, 0.1, 240).astype(np.float32)
    return Dataset("values", Examples(x[:200], y[:200]), Examples(x[200:], y[200:]), 0)


def words(folder: Path | None = None) -> Dataset:
    """Next word: sentences that count upwards in a vocabulary of 12 from a random start; 0 pads their ends."""
    rng = np.random.default_rng(1)
    sentences = 2 + (rng.integers(0, 10, (240, 1)) + np.arange(7)) % 10
    sentences[np.arange(7) >= rng.integers(4, 8, (240, 1))] = 0
    x, y = sentences[:, :-1], sentences[:, 1:]
    return Dataset("words", Examples(x[:200], y[:200]), Examples(x[200:], y[200:]), 12, task="next-word")


def boxes(folder: Path | None = None) -> Dataset:
    """Detection: images of 8 x 8 with bright (class 0) or dark (class 1) quadrants, at most two."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, 0.3, (240, 1, 8, 8)).astype(np.float32)
    y = np.full((240, 3, 5), -1.0, np.float32)
    for image in range(240):
        for place, quadrant in enumerate(rng.permutation(4)[: rng.integers(0, 3)]):
            kind, column, row = rng.integers(0, 2), quadrant % 2, quadrant // 2
            x[image, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1 - 2 * kind
            y[image, place] = (kind, 0.25 + 0.5 * column, 0.25 + 0.5 * row, 0.5, 0.5)
    return Dataset("boxes", Examples(x[:200], y[:200]), Examples(x[200:], y[200:]), 2, task="detection")


def dice(folder: Path | None = None) -> Dataset:
    """Classification without any rule: random labels of random points, so that a model can only learn them by heart."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(1200, 24)).astype(np.float32), rng.integers(0, 6, 1200)
    return Dataset("dice", Examples(x[:800], y[:800]), Examples(x[800:], y[800:]), 6)
