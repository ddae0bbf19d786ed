"""HARS: human activity recognition with smartphones, 10,299 windows of 30 persons in 561 features, six activities.

Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013; UCI Machine
Learning Repository. Reads the text files as they are published, in ``<FEDQUILT_DATA>/uci-har`` or the folder
``UCI HAR Dataset`` in it. The official test samples are those of nine persons. Where their features are not there,
the last six persons of the training part are held out instead, and the data set says so in its note.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt_common.datasets.files import SUFFIXES, dataset_folder, find
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
    """``x`` float32 of shape (n, 561) from -1 to 1 as published, ``y`` int64 from 0 to 5.

    Raises DataUnavailableError.
    """
    place = dataset_folder(folder, NAME)
    place = place / _INNER if (place / _INNER).is_dir() else place
    train, persons = _part(place, "train")
    if any((place / "test" / f"X_test.txt{suffix}").is_file() for suffix in SUFFIXES):
        return Dataset(NAME, train, _part(place, "test")[0], CLASSES, persons)
    out = np.unique(persons)[-HELD_OUT:]
    held = np.isin(persons, out)
    note = (
        "uci-har: test/X_test.txt is not there, so the test samples are not the official ones but those of persons "
        f"{', '.join(map(str, out))} of the training part, whom no client has"
    )
    kept, test = (train.take(np.flatnonzero(one)) for one in (~held, held))
    return Dataset(NAME, kept, test, CLASSES, persons[~held], note)


def _part(place: Path, part: str) -> tuple[Examples, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    files = [find(place / part, f"{kind}_{part}.txt") for kind in ("X", "y", "subject")]
    x = read_table(files[0], FEATURES)
    y, persons = read_whole_numbers(files[1], 1, CLASSES) - 1, read_whole_numbers(files[2], 1, PERSONS)
    if not len(x) == len(y) == len(persons):
        raise DataUnavailableError(
            f"{place / part}: {len(x)} samples have {len(y)} labels and {len(persons)} persons; fetch the files again"
        )
    return Examples(x, y), persons
