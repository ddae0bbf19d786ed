"""Walking in a corridor, upstairs and downstairs: windows of 2 s of nine inertial axes at 50 Hz, of seven persons.

The IMU data of Ouyang et al., "ClusterFL: A Similarity-Aware Federated Learning System for Human Activity
Recognition", MobiSys 2021, min-max scaled by its authors. Reads the folder ``imu_data_7`` as they publish it, in
``<FEDQUILT_DATA>/clusterfl-imu``: a file for each person and activity, such as ``hsh_1_walk_nor.txt``. If there is only
the authors' ``server_x_test.txt``, its 70 windows are the data set, without persons.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt_common.datasets.files import SUFFIXES, dataset_folder, find_file
from fedquilt_common.datasets.repairs import describe_absent_classes
from fedquilt_common.datasets.tables import read_table, read_whole_numbers, split_each_person
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset

NAME = "clusterfl-imu"
ACTIVITIES = ("walk", "up", "down")
PERSONS = ("hsh_1", "hsh_2", "hsh_3", "hsh_4", "mmw_1", "mmw_2", "mmw_3")
TIMES, AXES = 100, 9
_FOLDER = "imu_data_7"


def load(folder: Path | None = None) -> Dataset:
    """Load the windows: ``x`` float32 of shape (n, 9 axes, 100 times) from 0 to 1, ``y`` int64 of shape (n,), 0 to 2.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    place = dataset_folder(folder, NAME)
    if (place / _FOLDER).is_dir():
        return _load_persons(place / _FOLDER)
    if any((place / f"server_x_test.txt{suffix}").is_file() for suffix in SUFFIXES):
        return _load_server_test(place)
    raise DataUnavailableError(f"{place / _FOLDER}: there is no such folder; put the authors' files there")


def _load_persons(place: Path) -> Dataset:
    parts, labels, persons = [], [], []
    for person, prefix in enumerate(PERSONS):
        for kind, activity in enumerate(ACTIVITIES):
            windows = _read_windows(find_file(place, f"{prefix}_{activity}_nor.txt"), ",")
            parts.append(windows)
            labels += [kind] * len(windows)
            persons += [person] * len(windows)
    return split_each_person(NAME, np.concatenate(parts), np.array(labels), np.array(persons), ACTIVITIES)


def _load_server_test(place: Path) -> Dataset:
    files = [find_file(place, f"server_{kind}_test.txt") for kind in "xy"]
    x, y = _read_windows(files[0], None), read_whole_numbers(files[1], 0, len(ACTIVITIES) - 1)
    if len(x) != len(y):
        raise DataUnavailableError(
            f"{files[0]}: has {len(x)} windows, {files[1].name} {len(y)} labels; fetch both again"
        )
    split = split_each_person(NAME, x, y, np.zeros(len(y), dtype=np.int64), ACTIVITIES)
    missing = f"{_FOLDER} is missing, so the data set is only the {len(y)} windows of server_x_test.txt"
    notes = [missing, *describe_absent_classes(split.train.y, ACTIVITIES)]
    return Dataset(NAME, split.train, split.test, split.classes, None, f"{NAME}: {'; '.join(notes)}")


def _read_windows(path: Path, delimiter: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    rows = read_table(path, TIMES * AXES, delimiter)
    return np.ascontiguousarray(rows.reshape(-1, TIMES, AXES).transpose(0, 2, 1))
