"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes in ten classes (Xiao, Rasul and Vollgraf, 2017).

Reads the authors' four IDX files as they publish them, in ``<FEDQUILT_DATA>/fashion-mnist``. IDX is big-endian: a magic
number with the type (8: unsigned byte) and the number of dimensions, then the dimensions, then the values.
"""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.datasets.idx import load_idx
from fedquilt_common.types import Dataset


def load(folder: Path | None = None) -> Dataset:
    """Load Fashion-MNIST: ``x`` float32 of shape (n, 1, 28, 28) from 0 to 1, ``y`` int64 of shape (n,) from 0 to 9.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    return load_idx(folder, "fashion-mnist")
