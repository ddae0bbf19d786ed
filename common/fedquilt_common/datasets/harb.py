"""HARB: three activities, windows of 150 readings of a wristband's gyroscope and heart rate.

The data set of Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity
Recognition", MSc thesis, Lakehead University 2023, section 3.7. It is not published. This reads recordings of the same
kind, in ``<FEDQUILT_DATA>/harb``: a folder for each volunteer with a text file for each session, whose name begins with
the activity, such as ``anna/walking-1.txt``. As in figure 3.4, a line has the time in seconds and either three whole
numbers of the gyroscope, at 10 to 15 Hz, or one of the heart rate, at 2 to 3 Hz. Blanks or commas separate them.

As in the thesis, negative heart rates are noise and left out. The heart rate is interpolated at the gyroscope's times;
readings of the gyroscope without a heart rate within 5 s are left out, and no window spans them.
Volunteers are for training or for testing, not both. A copy of the training volunteers' walking, smoothed by a
Savitzky-Golay filter with the window 11 and the order 5 of figure 3.4, doubles these windows. The thesis does not
state the length of a window, nor the scale: here it has 150 readings, about 10 s, and each signal is standardised.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.blocks import read_to_end
from fedquilt_common.datasets.files import dataset_folder, find_files, note_file, open_packed, unpacked_path
from fedquilt_common.datasets.repairs import describe_absent_classes, describe_repairs
from fedquilt_common.datasets.tables import fit_float32
from fedquilt_common.datasets.windows import (
    cut_windows,
    find_nearest,
    hold_out,
    put_in_order,
    split_at_gaps,
    standardise_channels,
)
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME: Final = "harb"
ACTIVITIES: Final = ("walking", "studying", "sleeping")
BALANCED: Final = "walking"
TIMES: Final = 150
GAP: Final = 1.0
"""Seconds between two readings of the gyroscope; no window spans more."""
REACH: Final = 5.0
"""Seconds from a reading of the gyroscope to the nearest heart rate, at most."""
HELD_OUT: Final = 0.4
"""Part of the volunteers whose windows are for testing: 2,000 of 5,000 windows in Table 3.1."""
SMOOTHING: Final = (11, 5)
"""Window and order of the filter."""
_FIELDS: Final = {2: "heart rate", 4: "gyroscope"}
_SEPARATOR: Final = re.compile(r"\s*,\s*|\s+")
_FORM: Final = "write 'time x y z' for the gyroscope, or 'time rate' for the heart rate"


@dataclass(frozen=True)
class _WristSession:
    """A recording: the person's folder, the class, and the signals between gaps, each (a window or longer, 4)."""

    person: str
    label: int
    parts: list[NDArray[np.float32]]

    def windows(self, smooth: bool = False) -> NDArray[np.float32]:
        """Return the whole windows between gaps, shape (n, 4, times)."""
        parts = (smooth_signals(part) if smooth else part for part in self.parts)
        return np.concatenate([cut_windows(part, TIMES, TIMES) for part in parts])


def load(folder: Path | None = None) -> Dataset:
    """Load the windows: ``x`` float32 of shape (n, 4 signals, 150 times), ``y`` int64 of shape (n,) from 0 to 2.

    Raises:
        DataUnavailableError: files are missing, damaged or there twice; the error names file and line.
    """
    place, repairs = dataset_folder(folder, NAME), Counter[str]()
    files = _find_sessions(place, repairs)
    sessions = [one for path, label in files if (one := _read_session(path, place, label, repairs)) is not None]
    persons = sorted({one.person for one in sessions})
    if len(persons) < 2:
        raise DataUnavailableError(
            f"{place}: has sessions of {len(persons)} volunteers with a window of {TIMES} readings, but one volunteer "
            "for training and one for testing are needed; put files such as anna/walking-1.txt there"
        )
    held_out = hold_out(persons, HELD_OUT)
    train, who = _collect([one for one in sessions if one.person not in held_out], persons, balance=True)
    test, _ = _collect([one for one in sessions if one.person in held_out], persons, balance=False)
    standardise_channels(train.x, test.x)
    repairs["windows of walking added by the Savitzky-Golay filter"] = int((train.y == 0).sum()) // 2
    notes = describe_absent_classes(train.y, ACTIVITIES)
    notes += [f"volunteers {', '.join(sorted(held_out))} are the test set"]
    notes += describe_repairs(repairs)
    return Dataset(NAME, train, test, len(ACTIVITIES), who, f"{NAME}: {'; '.join(notes)}")


def _collect(sessions: list[_WristSession], persons: list[str], *, balance: bool) -> tuple[Examples, NDArray[np.int64]]:
    """Return the windows of sessions, and each window's person by number; ``balance`` doubles those of walking."""
    copies = [one for one in sessions if balance and one.label == ACTIVITIES.index(BALANCED)]
    parts = [*(one.windows() for one in sessions), *(one.windows(smooth=True) for one in copies)]
    each = [(one.label, persons.index(one.person)) for one in (*sessions, *copies)]
    repeated = np.repeat(np.array(each, dtype=np.int64), [len(part) for part in parts], axis=0)
    return Examples(np.concatenate(parts), repeated[:, 0]), repeated[:, 1]


def smooth_signals(signals: NDArray[np.float32]) -> NDArray[np.float32]:
    """Smooth each signal with the Savitzky-Golay filter.

    Savitzky and Golay, "Smoothing and Differentiation of Data by Simplified Least Squares Procedures", Analytical
    Chemistry 1964.

    Args:
        signals: shape (times, signals), as long as the filter's window or longer.
    """
    from scipy.signal import savgol_filter

    return np.asarray(savgol_filter(signals.astype(np.float64), *SMOOTHING, axis=0), dtype=np.float32)


def _find_sessions(place: Path, repairs: Counter[str]) -> list[tuple[Path, int]]:
    """List the files of sessions, each with its class, in the order of their paths."""
    sessions, found = list[tuple[Path, int]](), dict[Path, str]()
    for path in (path for path in find_files(place) if path.parent != place):
        name = path.name.lower()
        label = next((number for number, activity in enumerate(ACTIVITIES) if name.startswith(activity)), None)
        if label is None:
            repairs["files not named for an activity left out"] += 1
            continue
        note_file(found, unpacked_path(path), str(path))
        sessions.append((path, label))
    return sessions


def _read_session(path: Path, place: Path, label: int, repairs: Counter[str]) -> _WristSession | None:
    """Read a file; None if it lacks readings of either kind, or has no whole window."""
    rows: dict[str, list[list[float]]] = {kind: [] for kind in _FIELDS.values()}
    with open_packed(path) as stream:
        text = read_to_end(stream, str(path)).decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if content := line.strip().removesuffix(","):  # some programs end each line with a comma
            fields = _SEPARATOR.split(content.strip())
            rows[_kind_of(fields, path, number)].append(_parse(fields, path, number))
    heart = [row for row in rows["heart rate"] if row[1] >= 0]
    repairs["negative heart rates left out"] += len(rows["heart rate"]) - len(heart)
    if not heart or not rows["gyroscope"]:
        repairs["sessions without one of the sensors left out"] += 1
        return None
    times, signals = _join(np.array(rows["gyroscope"]), np.array(heart), repairs)
    parts = split_at_gaps(times, signals, GAP)
    parts = [part for part in parts if len(part) >= TIMES]
    if not parts:
        repairs[f"sessions too short for a window of {TIMES} readings left out"] += 1
        return None
    return _WristSession(path.relative_to(place).parts[0], label, parts)


def _kind_of(fields: list[str], path: Path, number: int) -> str:
    if "" in fields:
        raise DataUnavailableError(f"{path}, line {number}: has an empty field; {_FORM}")
    if len(fields) not in _FIELDS:
        raise DataUnavailableError(f"{path}, line {number}: has {len(fields)} fields; {_FORM}")
    return _FIELDS[len(fields)]


def _parse(fields: list[str], path: Path, number: int) -> list[float]:
    try:
        row = [float(field) for field in fields]
    except ValueError:
        raise DataUnavailableError(f"{path}, line {number}: holds something that is not a number; {_FORM}") from None
    if not fit_float32(row).all():
        raise DataUnavailableError(
            f"{path}, line {number}: holds a number that is not finite, or too large; remove the line"
        )
    return row


def _join(
    gyro: NDArray[Any], heart: NDArray[Any], repairs: Counter[str]
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Interpolate the heart rate at the gyroscope's times that have one within ``REACH``.

    Args:
        gyro: rows of time and three axes, in any order; the first one of each time counts.
        heart: rows of time and rate, likewise.
        repairs: counts the readings that are sorted or left out.

    Returns:
        The times, shape (n,), and the axes and the rate, shape (n, 4).
    """
    gyro, heart = (rows[put_in_order(rows[:, 0], repairs)] for rows in (gyro, heart))
    times, beats = gyro[:, 0], heart[:, 0]
    near = np.abs(beats[find_nearest(times, beats)] - times) <= REACH
    repairs[f"gyroscope readings without a heart rate within {REACH:g} s left out"] += int((~near).sum())
    rate = np.interp(times[near], beats, heart[:, 1])
    return times[near], np.column_stack([gyro[near, 1:], rate]).astype(np.float32)
