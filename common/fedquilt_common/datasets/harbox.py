"""HARBox: five activities of daily life, windows of 2 s of nine inertial axes at 50 Hz, of about 120 persons.

The phones recorded at about 50 Hz. As the authors describe, the readings are resampled at 50 Hz, here by linear
interpolation at their times; no window spans a pause of more than 1 s. Each axis is scaled to 0 to 1 over all training
windows, as the authors' IMU data are, so that these can be its public set.

Ouyang et al., "ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition", MobiSys 2021.
Reads the folder ``large_scale_HARBox`` as its authors publish it, in ``<FEDQUILT_DATA>/harbox``: a folder for each
person with files such as ``Walk_train.txt``. A row is an instant: milliseconds and nine axes. A window has 100 rows.
Some persons lack some activities.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import SUFFIXES, dataset_folder, find_file, inner_folder
from fedquilt_common.datasets.tables import read_precise_table, split_each_person
from fedquilt_common.datasets.windows import cut_windows, put_in_order, resample, scale_channels
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset

NAME = "harbox"
ACTIVITIES = ("Call", "Hop", "typing", "Walk", "Wave")
TIMES, AXES = 100, 9
PERIOD = 20.0
"""Milliseconds between two rows of a window."""
GAP = 1000.0
"""Milliseconds that no window spans."""
_FOLDER = "large_scale_HARBox"


def load(folder: Path | None = None) -> Dataset:
    """Load the windows: ``x`` float32 of shape (n, 9 axes, 100 times), ``y`` int64 of shape (n,) from 0 to 4.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    place = inner_folder(dataset_folder(folder, NAME), _FOLDER)
    people = sorted((p for p in place.iterdir() if p.is_dir() and p.name.isdigit()), key=lambda p: int(p.name))
    repairs = Counter[str]()
    parts, labels, persons = list[NDArray[np.float32]](), list[int](), list[int]()
    for person in people:
        for kind, activity in enumerate(ACTIVITIES):
            if any((person / f"{activity}_train.txt{suffix}").is_file() for suffix in SUFFIXES):
                windows = _read_windows(find_file(person, f"{activity}_train.txt"), repairs)
                parts.append(windows)
                labels += [kind] * len(windows)
                persons += [int(person.name)] * len(windows)
    if not parts:
        raise DataUnavailableError(
            f"{place}: holds no folder of a person with files such as 1/Walk_train.txt; put them there"
        )
    if not labels:
        raise DataUnavailableError(
            f"{place}: no file has a window: {TIMES} rows at 50 Hz without a pause of more than 1 s. The first column "
            "is the time in milliseconds"
        )
    found = split_each_person(NAME, np.concatenate(parts), np.array(labels), np.array(persons), ACTIVITIES, repairs)
    scale_channels(found.train.x, found.test.x)
    return found


def _read_windows(path: Path, repairs: Counter[str]) -> NDArray[np.float32]:
    """Read the full windows of a file, shape (n, axes, times); rows that do not fill a window are left out."""
    rows = read_precise_table(path, 1 + AXES)
    rows = rows[put_in_order(rows[:, 0], repairs)]
    parts = resample(rows[:, 0], rows[:, 1:], PERIOD, GAP)
    repairs["pauses of more than 1 s"] += len(parts) - 1
    repairs["files without a whole window left out"] += all(len(part) < TIMES for part in parts)
    return np.concatenate([cut_windows(part, TIMES, TIMES) for part in parts])
