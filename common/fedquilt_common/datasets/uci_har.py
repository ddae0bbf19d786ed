"""HARS: human activity recognition with smartphones, 10,299 windows of 30 persons in 561 features, six activities.

Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013; UCI Machine
Learning Repository. Reads the text files as they are published, in ``<FEDQUILT_DATA>/uci-har`` or the folder
``UCI HAR Dataset`` in it. The official test samples are those of nine persons. If the files do not include their
features, the last six persons of the training part are the test samples, and the data set's note reports that.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt_common.datasets.files import SUFFIXES, dataset_folder, find_file, inner_folder
from fedquilt_common.datasets.tables import read_table, read_whole_numbers
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME = "uci-har"
FEATURES = 561
CLASSES = 6
PERSONS = 30
HELD_OUT = 6
_INNER = "UCI HAR Dataset"


def load(folder: Path | None = None) -> Dataset:
    """Load the windows: ``x`` float32 of shape (n, 561) from -1 to 1 as published, ``y`` int64 of shape (n,), 0 to 5.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    place = inner_folder(dataset_folder(folder, NAME), _INNER)
    train, persons = _read_part(place, "train")
    if any((place / "test" / f"X_test.txt{suffix}").is_file() for suffix in SUFFIXES):
        return Dataset(NAME, train, _read_part(place, "test")[0], CLASSES, persons)
    test_persons = np.unique(persons)[-HELD_OUT:]
    is_test = np.isin(persons, test_persons)
    note = (
        "uci-har: test/X_test.txt is missing, so the test samples are not the official ones; they are those of persons "
        f"{', '.join(map(str, test_persons))} of the training part, which no client has"
    )
    kept, test = (train.take(np.flatnonzero(chosen)) for chosen in (~is_test, is_test))
    return Dataset(NAME, kept, test, CLASSES, persons[~is_test], note)


def _read_part(place: Path, part: str) -> tuple[Examples, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    files = [find_file(place / part, f"{kind}_{part}.txt") for kind in ("X", "y", "subject")]
    x = read_table(files[0], FEATURES)
    y, persons = read_whole_numbers(files[1], 1, CLASSES) - 1, read_whole_numbers(files[2], 1, PERSONS)
    if not len(x) == len(y) == len(persons):
        raise DataUnavailableError(
            f"{place / part}: {len(x)} samples have {len(y)} labels and {len(persons)} persons; fetch the files again"
        )
    return Examples(x, y), persons
