"""Handwritten digits of 8 x 8 pixels, which come with scikit-learn: no download.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998: the 1,797
digits of its test part. There is no official split; here a fixed fifth of each class is the test set.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, how_to_install
from fedquilt_common.types import Dataset, Examples

CLASSES = 10
_DARKEST = np.float32(16)


def load(folder: Path | None = None) -> Dataset:
    """Load the digits: ``x`` float32 of shape (n, 1, 8, 8) from 0 to 1, ``y`` int64 of shape (n,) from 0 to 9.

    Args:
        folder: not used.

    Raises:
        DataUnavailableError: scikit-learn is not installed.
    """
    x, y = _read_samples()
    test = np.concatenate([np.flatnonzero(y == digit)[::5] for digit in range(CLASSES)])
    held_out = np.isin(np.arange(len(y)), test)
    examples = Examples(x, y)
    return Dataset(
        "digits",
        examples.take(np.flatnonzero(~held_out)),
        examples.take(np.flatnonzero(held_out)),
        CLASSES,
    )


def _read_samples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    table = np.loadtxt(_find_table(), delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, 1, 8, 8) / _DARKEST, table[:, -1].astype(np.int64)


def _find_table() -> Path:
    """Find the table without importing scikit-learn, which would cost a board seconds and 75 MB."""
    package = importlib.util.find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.exists():
            return file
    raise DataUnavailableError(
        f"the data set 'digits' comes with scikit-learn, which is missing or incomplete; {how_to_install('client')}"
    )
