"""Read numbers from text files, and split data sets that have no official split."""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedquilt_common.datasets.blocks import read_to_end
from fedquilt_common.datasets.files import open_packed
from fedquilt_common.datasets.repairs import describe_absent_classes, describe_repairs
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

_GREATEST: Final = np.float64(np.finfo(np.float32).max)


def fit_float32(values: ArrayLike) -> NDArray[np.bool_]:
    """Return for each number whether it is finite and float32 can hold it, in the shape of ``values``."""
    numbers = np.asarray(values)
    held: NDArray[np.bool_] = (numbers >= -_GREATEST) & (numbers <= _GREATEST)  # a NaN is neither
    return held


def read_table(path: Path, columns: int, delimiter: str | None = None) -> NDArray[np.float32]:
    """Read a table of numbers.

    Args:
        path: of the text file, plain or packed.
        columns: numbers in a row.
        delimiter: between numbers; None: blanks.

    Returns:
        float32 of shape (n, columns).

    Raises:
        DataUnavailableError: the file is damaged or empty, has other columns, or holds numbers that float32 does not.
    """
    return read_precise_table(path, columns, delimiter).astype(np.float32)


def read_precise_table(path: Path, columns: int, delimiter: str | None = None) -> NDArray[np.float64]:
    """Read a table as ``read_table`` does, but in float64 of shape (n, columns), which times in milliseconds need."""
    with open_packed(path) as stream:
        data = read_to_end(stream, str(path)).removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise DataUnavailableError(f"{path}: is empty, but should have {columns} columns; fetch it again")
    try:
        table = np.loadtxt(io.BytesIO(data), dtype=np.float64, delimiter=delimiter, ndmin=2)
    except (ValueError, UnicodeDecodeError) as error:
        raise DataUnavailableError(f"{path}: is not a table of numbers ({str(error)[:200]}); fetch it again") from None
    if table.shape[1] != columns:
        raise DataUnavailableError(f"{path}: has {table.shape[1]} columns instead of {columns}; fetch it again")
    if not fit_float32(table).all():
        raise DataUnavailableError(f"{path}: holds numbers that are not finite, or too large; fetch it again")
    return table


def read_whole_numbers(path: Path, least: int, most: int) -> NDArray[np.int64]:
    """Read one whole number from each line.

    Args:
        path: of the text file, plain or packed.
        least: smallest number that may appear.
        most: greatest number that may appear.

    Returns:
        int64 of shape (n,).

    Raises:
        DataUnavailableError: as ``read_table``, or a number is not whole or out of bounds.
    """
    column = read_table(path, 1)[:, 0]
    numbers: NDArray[np.int64] = column.astype(np.int64)
    if (numbers != column).any() or numbers.min() < least or numbers.max() > most:
        raise DataUnavailableError(f"{path}: must hold whole numbers from {least} to {most} only; fetch it again")
    return numbers


def split_each_person(
    name: str,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    person: NDArray[np.int64],
    classes: Sequence[str],
    repairs: Mapping[str, int] = MappingProxyType({}),
) -> Dataset:
    """Split samples: of each person and class, the last 3 of each 10 samples are for testing.

    That is the ratio of the FedAKD thesis's Table 4.2.

    Args:
        name: of the data set.
        x: samples, float32 of shape (n, ...).
        y: classes, int64 of shape (n,).
        person: of each sample, shape (n,).
        classes: their names.
        repairs: how many of each kind, as for ``describe_repairs``.

    Returns:
        The data set, with the persons of its training samples as subjects, and a note of the repairs and of the classes
        without training samples.
    """
    test = np.zeros(len(y), dtype=bool)
    for key in np.unique(np.stack([person, y], axis=1), axis=0):
        own = np.flatnonzero((person == key[0]) & (y == key[1]))
        test[own[np.arange(len(own)) % 10 >= 7]] = True
    train = Examples(x[~test], y[~test])
    notes = [*describe_absent_classes(train.y, classes), *describe_repairs(repairs)]
    note = f"{name}: {'; '.join(notes)}" if notes else ""
    return Dataset(name, train, Examples(x[test], y[test]), len(classes), person[~test], note)
