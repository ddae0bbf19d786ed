"""Numbers in text files, and how samples without an official split are split."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import open_packed
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

MOST_BYTES = 2 << 30
"""Of a text file, unpacked: a small archive must not fill a board's memory."""
_READ = 1 << 20


def read_table(path: Path, columns: int, delimiter: str | None = None) -> NDArray[np.float32]:
    """All rows of ``columns`` numbers, shape (n, columns); ``delimiter`` None means blanks.

    Raises DataUnavailableError for a file that is damaged, empty, not of numbers, or of another number of columns.
    """
    with open_packed(path) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataUnavailableError(f"{path}: has more than {MOST_BYTES} bytes; it cannot be this data set's file")
    if not data.strip():
        raise DataUnavailableError(f"{path}: is empty where there should be {columns} columns; fetch it again")
    try:
        table = np.loadtxt(io.BytesIO(data), dtype=np.float64, delimiter=delimiter, ndmin=2)
    except (ValueError, UnicodeDecodeError) as error:
        raise DataUnavailableError(f"{path}: is no table of numbers ({str(error)[:200]}); fetch it again") from None
    if table.shape[1] != columns:
        raise DataUnavailableError(f"{path}: has {table.shape[1]} columns instead of {columns}; fetch it again")
    if not np.isfinite(table).all():
        raise DataUnavailableError(f"{path}: holds numbers that are not finite; fetch it again")
    return table.astype(np.float32)


def read_whole_numbers(path: Path, least: int, most: int) -> NDArray[np.int64]:
    """One whole number a line, shape (n,). Raises DataUnavailableError, also for one out of bounds."""
    found = read_table(path, 1)[:, 0]
    numbers: NDArray[np.int64] = found.astype(np.int64)
    if (numbers != found).any() or numbers.min() < least or numbers.max() > most:
        raise DataUnavailableError(f"{path}: must hold whole numbers from {least} to {most} only; fetch it again")
    return numbers


def split_each_person(
    name: str, x: NDArray[np.float32], y: NDArray[np.int64], person: NDArray[np.int64], classes: int
) -> Dataset:
    """A data set without an official split: of each person and class, 3 of each 10 samples in turn are for testing.

    That is the ratio of the FedAKD thesis's Table 4.2.
    """
    test = np.zeros(len(y), dtype=bool)
    for key in np.unique(np.stack([person, y], axis=1), axis=0):
        mine = np.flatnonzero((person == key[0]) & (y == key[1]))
        test[mine[np.arange(len(mine)) % 10 >= 7]] = True
    return Dataset(name, Examples(x[~test], y[~test]), Examples(x[test], y[test]), classes, person[~test])
