"""Handwritten digits of 8 x 8 pixels, which come with scikit-learn: no download.

Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998; the
test part of it, 1,797 digits. It has no official split: here a fixed fifth of each class is the test set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

CLASSES = 10
_DARKEST = np.float32(16)


def load(folder: Path | None = None) -> Dataset:
    """``x`` float32 of shape (n, 1, 8, 8) from 0 to 1, ``y`` int64; ``folder`` is not used.

    Raises DataUnavailableError where scikit-learn is not installed.
    """
    x, y = _samples()
    test = np.concatenate([np.flatnonzero(y == digit)[::5] for digit in range(CLASSES)])
    held_out = np.isin(np.arange(len(y)), test)
    examples = Examples(x, y)
    return Dataset(
        "digits",
        examples.take(np.flatnonzero(~held_out)),
        examples.take(np.flatnonzero(held_out)),
        CLASSES,
    )


def _samples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataUnavailableError(
            "the data set 'digits' comes with scikit-learn, which is not installed; pip install 'fedquilt[client]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    x = pixels.astype(np.float32).reshape(-1, 1, 8, 8) / _DARKEST
    return x, labels.astype(np.int64)
