"""Prepare WISDM's raw files, for the data sets ``wisdm-w`` (watch) and ``wisdm-p`` (phone).

The preparation is FedAIoT's (Alam et al., journal paper, sections 3.1 and 3.2.2): the four meals are the one activity
eating, kicking, catching and dribbling are left out, windows have 200 rows and overlap by half, 45 persons are for
training and 6 for testing. The paper does not name the 6; here the digest of a person's number chooses them.

Within a person's activity, rows are sorted by time and repeated times are left out. A sensor that recorded at 40 Hz or
more is thinned to the nominal 20 Hz at least; a few phones recorded at 25 Hz, so that their windows last 8 s. Each
accelerometer row receives the gyroscope row nearest in time, at most 50 ms away. No window spans a gap of more than
1 s. The note counts the repairs.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import PublishedFile, read_files
from fedquilt_common.datasets.files import dataset_folder, note_file
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.tables import fit_float32
from fedquilt_common.datasets.windows import (
    HALF_SHARED,
    cut_windows,
    find_nearest,
    hold_out,
    put_in_order,
    standardise_channels,
)
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

CLASSES = (
    "walking", "jogging", "stairs", "sitting", "standing", "typing", "teeth", "eating", "drinking", "writing",
    "clapping", "folding",
)  # fmt: skip
ACTIVITIES: Mapping[str, str | None] = {
    "A": "walking", "B": "jogging", "C": "stairs", "D": "sitting", "E": "standing", "F": "typing", "G": "teeth",
    "H": "eating", "I": "eating", "J": "eating", "K": "drinking", "L": "eating", "M": None, "O": None, "P": None,
    "Q": "writing", "R": "clapping", "S": "folding",
}  # fmt: skip
"""Class of each letter in the files; None: left out."""
PERSONS = 51
HELD_OUT = 6
LENGTH, STRIDE = 200, 100
PERIOD = 50_000_000
"""Nanoseconds between two rows at the nominal 20 Hz, and the greatest distance of two rows that are joined."""
GAP = 1_000_000_000
"""Nanoseconds without a row that end a window."""
_LINE = [("person", "i8"), ("activity", "U2"), ("time", "i8"), ("x", "f8"), ("y", "f8"), ("z", "f8")]
_SENSORS = ("accel", "gyro")
_Readings = NDArray[Any]
"""A structured array of ``time`` and the axes ``x``, ``y`` and ``z``."""


@dataclass(frozen=True)
class _Session:
    person: int
    activity: str


def load_device(folder: Path | None, name: str, device: str) -> Dataset:
    """Load the windows of one device.

    Args:
        folder: contains ``wisdm2019``.
        name: of the data set.
        device: ``watch`` or ``phone``, as in the files' names.

    Returns:
        ``x`` float32 of shape (n, 6 axes, 200 times), ``y`` int64 of shape (n,) from 0 to 11.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names file and line.
    """
    place = dataset_folder(folder, name)
    sensors, repairs = _read_sensors(place, device)
    windows, labels, persons = _cut_sessions(sensors, repairs)
    if len(set(persons)) < 2:
        raise DataUnavailableError(
            f"{place}: has windows of {len(set(persons))} persons from the {device}, but a person for training and one "
            f"for testing are needed; put files such as data_1600_accel_{device}.txt and their gyro files there"
        )
    x, y, person = np.concatenate(windows), np.array(labels), np.array(persons)
    test_persons = hold_out(persons, HELD_OUT / PERSONS)
    is_test = np.isin(person, list(test_persons))
    train, test = (Examples(x[chosen], y[chosen]) for chosen in (~is_test, is_test))
    standardise_channels(train.x, test.x)
    note = _describe(name, set(persons), test_persons, set(labels), repairs)
    return Dataset(name, train, test, len(CLASSES), person[~is_test], note)


def _describe(name: str, persons: set[int], test: set[int], labels: set[int], repairs: Counter[str]) -> str:
    notes = [f"persons {', '.join(map(str, sorted(test)))} are the test set", HALF_SHARED]
    if len(persons) < PERSONS:
        notes.append(f"only {len(persons)} of {PERSONS} persons have windows")
    if missing := [activity for number, activity in enumerate(CLASSES) if number not in labels]:
        notes.append(f"no windows of {', '.join(missing)}")
    notes += describe_repairs(repairs)
    return f"{name}: {'; '.join(notes)}"


def _read_sensors(place: Path, device: str) -> tuple[dict[str, dict[_Session, _Readings]], Counter[str]]:
    """Read each sensor's rows, by person and activity, in order of time."""
    pattern = re.compile(rf"data_(\d+)_(accel|gyro)_{device}\.txt")
    sensors: dict[str, dict[_Session, _Readings]] = {sensor: {} for sensor in _SENSORS}
    found, repairs = dict[str, str](), Counter[str]()
    for file in read_files(place, pattern.fullmatch):
        note_file(found, file.name, file.where)
        person, sensor = pattern.findall(file.name)[0]
        sensors[sensor].update(_read_readings(file, int(person), repairs))
    return sensors, repairs


def _read_readings(file: PublishedFile, person: int, repairs: Counter[str]) -> dict[_Session, _Readings]:
    rows = _parse(file, repairs)
    _check(rows, file, person)
    sessions = {}
    for activity in np.unique(rows["activity"]).tolist():
        if ACTIVITIES[activity] is not None:
            own = rows[rows["activity"] == activity][["time", "x", "y", "z"]]
            sessions[_Session(person, activity)] = own[put_in_order(own["time"], repairs)]
    return sessions


def _parse(file: PublishedFile, repairs: Counter[str]) -> _Readings:
    text = file.data.decode("utf-8", errors="replace")
    whole, _, last = text.rpartition("\n")
    if ";" in whole and last.strip() and not last.rstrip().endswith(";"):
        text = whole
        repairs["unfinished rows left out"] += 1
    text = text.replace(";", "")
    if not text.strip():
        raise DataUnavailableError(f"{file.where}: is empty; fetch it again")
    try:
        return _read_table(text)
    except ValueError:
        line = next((n for n, words in enumerate(text.splitlines(), 1) if words.strip() and not _is_row(words)), 1)
        raise DataUnavailableError(
            f"{file.where}, line {line}: is not 'person,activity,time,x,y,z;'; fetch the file again"
        ) from None


def _read_table(text: str) -> _Readings:
    return np.loadtxt(io.StringIO(text, newline=None), dtype=_LINE, delimiter=",", ndmin=1, comments=None)


def _is_row(words: str) -> bool:
    try:
        _read_table(words)
    except ValueError:
        return False
    return True


def _check(rows: _Readings, file: PublishedFile, person: int) -> None:
    """Check the values of all rows.

    Raises:
        DataUnavailableError: an activity is unknown, a row is another person's, or a number is not finite.
    """
    unknown = ~np.isin(rows["activity"], list(ACTIVITIES))
    foreign = rows["person"] != person
    broken = ~np.all([fit_float32(rows[axis]) for axis in "xyz"], axis=0)
    for wrong, words in (
        (unknown, f"has an activity that is not one of {''.join(ACTIVITIES)}"),
        (foreign, f"is not of person {person}"),
        (broken, "holds a number that is not finite, or too large"),
    ):
        if wrong.any():
            number = int(np.flatnonzero(wrong)[0])
            lines = [n for n, line in enumerate(file.data.splitlines(), 1) if line.strip(b"; \t")]
            raise DataUnavailableError(f"{file.where}, line {lines[number]}: {words}; fetch the file again")


def _cut_sessions(
    sensors: Mapping[str, Mapping[_Session, _Readings]], repairs: Counter[str]
) -> tuple[list[NDArray[np.float32]], list[int], list[int]]:
    """Return the windows of each session, and the class and the person of each window."""
    accel, gyro = (sensors[sensor] for sensor in _SENSORS)
    repairs["sessions without one of the sensors left out"] += len(accel.keys() ^ gyro.keys())
    parts, labels, persons = list[NDArray[np.float32]](), list[int](), list[int]()
    for session in sorted(accel.keys() & gyro.keys(), key=lambda s: (s.person, s.activity)):
        windows = _cut_session(accel[session], gyro[session], repairs)
        repairs["sessions without a whole window left out"] += not len(windows)
        parts.append(windows)
        labels += [CLASSES.index(str(ACTIVITIES[session.activity]))] * len(windows)
        persons += [session.person] * len(windows)
    return parts, labels, persons


def _cut_session(accel: _Readings, gyro: _Readings, repairs: Counter[str]) -> NDArray[np.float32]:
    thinned = _thin(accel)
    repairs["rows above 20 Hz left out"] += len(accel) - len(thinned)
    nearest = find_nearest(thinned["time"], gyro["time"])
    near = np.abs(gyro["time"][nearest] - thinned["time"]) <= PERIOD
    repairs["rows without a gyroscope row near in time left out"] += int((~near).sum())
    joined = [*(thinned[axis][near] for axis in "xyz"), *(gyro[axis][nearest[near]] for axis in "xyz")]
    rows = np.stack(joined, axis=1).astype(np.float32)
    gaps = np.flatnonzero(np.diff(thinned["time"][near]) > GAP) + 1
    repairs["gaps of more than 1 s"] += len(gaps)
    return np.concatenate([cut_windows(part, LENGTH, STRIDE) for part in np.split(rows, gaps)])


def _thin(rows: _Readings) -> _Readings:
    """Keep each second, third, ... row of a sensor that recorded at two, three, ... times the nominal rate."""
    if len(rows) < 2:
        return rows
    return rows[:: max(1, int(PERIOD / np.median(np.diff(rows["time"]))))]
