"""UT-HAR: seven activities from the Wi-Fi signal of three antennas with 30 subcarriers, windows of 250 packets.

Yousefi, Narui, Dayal, Ermon and Valaee, "A Survey on Behavior Recognition Using WiFi Channel State Information", IEEE
Communications Magazine 55(10), 2017. Reads two forms, in ``<FEDQUILT_DATA>/wifi-csi``. The first is the windows that
Yang et al. ("SenseFi", Patterns, 2023) publish with a split, 3,977 for training and 500 for testing: ``X_train.csv``,
``y_train.csv``, ``X_test.csv`` and ``y_test.csv``, which are NumPy files despite their names. The second is the
authors' trials, such as ``input_161219_siamak_fall_1.csv`` and ``annotation_161219_siamak_fall_1.csv``, even those of
the early release, in folders or archives. A trial has 181 columns: the time, 90 amplitudes and 90 phases.

FedAIoT (Alam et al., journal paper, section 3.2.2) cuts trials into windows of 250 packets that overlap by half, and
uses the amplitudes only (thesis, section 2.2.2.1). A window is a sample of an activity if at least 60 % of its packets
have its label, the share in the code of Yousefi et al., or if it has at least 60 % of the trial's packets with that
label; windows of no activity are left out. Trials have no official split: 500 of 4,477 trials of each activity, at
least one, are the test set if the activity has two, and a digest of the trial's name chooses them.
"""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import PublishedFile, read_files
from fedquilt_common.datasets.files import dataset_folder, note_file
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.tables import fit_float32
from fedquilt_common.datasets.windows import HALF_SHARED, cut_windows, hold_out, standardise_channels
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME = "ut-har"
ACTIVITIES = ("bed", "fall", "walk", "pickup", "run", "sitdown", "standup")
"""Classes in the order of the published windows; ``bed`` is lying down."""
IDLE = "NoActivity"
ANTENNAS, SUBCARRIERS = 3, 30
LENGTH, STRIDE = 250, 125
SHARE = 0.6
HELD_OUT = 500 / 4477
_AMPLITUDES = ANTENNAS * SUBCARRIERS
_SHAPES = ((LENGTH, _AMPLITUDES), (1, LENGTH, _AMPLITUDES), (LENGTH * _AMPLITUDES,))
"""Shapes of a published window. In another shape of the same size, times and amplitudes would be mixed up."""
_COLUMNS = 1 + 2 * _AMPLITUDES
_TRIAL = re.compile(r"(input|annotation)_(.+?)(\.dat)?\.csv")
_ARRAY = re.compile(r"[Xy]_(train|test)\.csv")


@dataclass(frozen=True)
class _Trial:
    name: str
    windows: NDArray[np.float32]
    labels: NDArray[np.int64]


def load(folder: Path | None = None) -> Dataset:
    """Load the windows: ``x`` float32 of shape (n, 3, 30, 250), ``y`` int64 of shape (n,) from 0 to 6.

    Each of the 90 amplitudes has mean 0 and variance 1 in the training samples.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names file and line.
    """
    place = dataset_folder(folder, NAME)
    arrays, annotations = _read_first(place)
    if arrays:
        train, test = (_take_part(arrays, part, place) for part in ("train", "test"))
        return _finish(train, test, None, "")
    return _load_trials(place, annotations)


def _finish(train: Examples, test: Examples, subjects: NDArray[np.int64] | None, note: str) -> Dataset:
    """Scale the amplitudes, of shape (n, 90, 250), and give them their final shape."""
    standardise_channels(train.x, test.x)
    shaped = (Examples(part.x.reshape(-1, ANTENNAS, SUBCARRIERS, LENGTH), part.y) for part in (train, test))
    return Dataset(NAME, next(shaped), next(shaped), len(ACTIVITIES), subjects, note)


def _read_first(place: Path) -> tuple[dict[str, NDArray[Any]], list[PublishedFile]]:
    """Read the windows, and the annotations of the trials, which are much smaller than the trials themselves."""
    arrays, found, annotations = dict[str, NDArray[Any]](), dict[str, str](), list[PublishedFile]()
    for file in read_files(place, lambda name: _ARRAY.fullmatch(name) or _is_trial(name, "annotation")):
        if not _ARRAY.fullmatch(file.name):
            annotations.append(file)
            continue
        note_file(found, file.name, file.where)
        arrays[file.name] = _read_array(file)
    return arrays, annotations


def _is_trial(name: str, kind: str) -> bool:
    match = _TRIAL.fullmatch(name)
    return match is not None and match[1] == kind


def _read_array(file: PublishedFile) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(file.data), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, MemoryError, tokenize.TokenError) as error:
        raise DataUnavailableError(f"{file.where}: is not a NumPy file ({error}); fetch it again") from None
    if array.dtype.kind not in "iuf" or not fit_float32(array).all():
        raise DataUnavailableError(
            f"{file.where}: holds values that are not finite numbers, or too large; fetch it again"
        )
    return array


def _take_part(arrays: Mapping[str, NDArray[Any]], part: str, place: Path) -> Examples:
    names = [f"X_{part}.csv", f"y_{part}.csv"]
    if missing := [name for name in names if name not in arrays]:
        raise DataUnavailableError(f"{place}: lacks {' and '.join(missing)}; put the published files there")
    x, y = (arrays[name] for name in names)
    if x.shape[1:] not in _SHAPES or y.shape != x.shape[:1] or not len(x):
        raise DataUnavailableError(
            f"{place}: {names[0]} has the shape {x.shape} and {names[1]} {y.shape} instead of (n, {LENGTH}, "
            f"{_AMPLITUDES}) and (n,); fetch both again"
        )
    if not np.isin(y, np.arange(len(ACTIVITIES))).all():
        raise DataUnavailableError(
            f"{place}: {names[1]} has a label that is not a whole number from 0 to {len(ACTIVITIES) - 1}; fetch it "
            "again"
        )
    windows = x.reshape(-1, LENGTH, _AMPLITUDES).transpose(0, 2, 1)
    return Examples(np.ascontiguousarray(windows, dtype=np.float32), y.astype(np.int64))


def _load_trials(place: Path, annotations: Sequence[PublishedFile]) -> Dataset:
    repairs = Counter[str]()
    trials = [trial for trial in _read_trials(place, annotations, repairs) if len(trial.labels)]
    test_trials = _choose_test_trials(trials)
    if not test_trials:
        raise DataUnavailableError(
            f"{place}: has no activity with two trials, so none can be for testing; put the authors' files there, "
            "such as input_161219_siamak_fall_1.csv and annotation_161219_siamak_fall_1.csv"
        )
    persons = sorted({_person(trial.name) for trial in trials})
    x, y = (np.concatenate([getattr(trial, kind) for trial in trials]) for kind in ("windows", "labels"))
    person = np.array([persons.index(_person(trial.name)) for trial in trials for _ in trial.labels], dtype=np.int64)
    is_test = np.array([trial.name in test_trials for trial in trials for _ in trial.labels])
    train, test = (Examples(x[chosen], y[chosen]) for chosen in (~is_test, is_test))
    notes = [f"{len(test_trials)} of {len(trials)} trials are the test set, which is not an official one"]
    notes.append(HALF_SHARED)
    notes += describe_repairs(repairs)
    return _finish(train, test, person[~is_test], f"{NAME}: {'; '.join(notes)}")


def _person(trial: str) -> str:
    """Return the person in a trial's name: what is neither a number nor an activity."""
    return "_".join(word for word in trial.split("_") if not word.isdigit() and word not in ACTIVITIES)


def _choose_test_trials(trials: list[_Trial]) -> set[str]:
    chosen = set[str]()
    for activity in range(len(ACTIVITIES)):
        names = {trial.name for trial in trials if (trial.labels == activity).any()}
        if len(names) > 1:
            chosen |= hold_out(names, HELD_OUT)
    return chosen


def _read_trials(place: Path, annotations: Sequence[PublishedFile], repairs: Counter[str]) -> list[_Trial]:
    """Read the trials one at a time."""
    known = {_TRIAL.sub(r"\2", file.name): _read_labels(file) for file in annotations}
    trials, found, used = dict[str, _Trial](), dict[str, str](), set[str]()
    for file in read_files(place, lambda name: _is_trial(name, "input")):
        name = _TRIAL.sub(r"\2", file.name)
        key = name if name in known else re.sub(r"^\d+_", "", name)
        if key not in known:
            raise DataUnavailableError(f"{file.where}: there is no annotation_{name}.csv for it; put it there")
        note_file(found, name, file.where)
        trials[name] = _cut_trial(name, file, known[key], repairs)
        used.add(key)
    repairs["annotations without a trial left out"] += len(known.keys() - used)
    return [trials[name] for name in sorted(trials)]


def _read_labels(file: PublishedFile) -> NDArray[np.int64]:
    """Read a label from each line; -1 is no activity."""
    labels = []
    for line, words in enumerate(file.data.decode("utf-8", errors="replace").split(), 1):
        if words not in (IDLE, *ACTIVITIES):
            raise DataUnavailableError(
                f"{file.where}, line {line}: '{words[:40]}' is none of {IDLE}, {', '.join(ACTIVITIES)}; fetch it again"
            )
        labels.append(-1 if words == IDLE else ACTIVITIES.index(words))
    return np.array(labels, dtype=np.int64)


def _cut_trial(name: str, file: PublishedFile, labels: NDArray[np.int64], repairs: Counter[str]) -> _Trial:
    rows = _read_packets(file)
    if len(rows) != len(labels):
        raise DataUnavailableError(
            f"{file.where}: has {len(rows)} packets, but its annotation has {len(labels)} labels; fetch both again"
        )
    order = np.argsort(rows[:, 0], kind="stable")
    repairs["packets out of order sorted"] += int((np.diff(rows[:, 0]) < 0).sum())
    amplitudes = rows[order, 1 : 1 + _AMPLITUDES].astype(np.float32)
    windows = cut_windows(amplitudes, LENGTH, STRIDE)
    repairs["trials without a whole window left out"] += not len(windows)
    chosen = label_windows(labels[order], len(windows))
    repairs["windows without an activity left out"] += int((chosen < 0).sum())
    return _Trial(name, windows[chosen >= 0], chosen[chosen >= 0])


def label_windows(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the activity of each of a trial's windows, -1 for none.

    Args:
        labels: of each packet, -1 for no activity, shape (packets,).
        count: of windows.
    """
    total = np.bincount(labels[labels >= 0], minlength=len(ACTIVITIES))
    found = np.full(count, -1, dtype=np.int64)
    for window in range(count):
        own = labels[window * STRIDE : window * STRIDE + LENGTH]
        counts = np.bincount(own[own >= 0], minlength=len(ACTIVITIES))
        best = int(counts.argmax())
        if counts[best] and (counts[best] >= SHARE * LENGTH or counts[best] >= SHARE * total[best]):
            found[window] = best
    return found


def _read_packets(file: PublishedFile) -> NDArray[np.float64]:
    if file.data.strip():
        with contextlib.suppress(ValueError):
            rows: NDArray[np.float64] = np.loadtxt(io.BytesIO(file.data), delimiter=",", ndmin=2, comments=None)
            if rows.shape[1] == _COLUMNS and fit_float32(rows).all():
                return rows
    lines = file.data.splitlines()
    line = next((number for number, words in enumerate(lines, 1) if not _is_packet(words)), 1)
    raise DataUnavailableError(f"{file.where}, line {line}: does not have {_COLUMNS} finite numbers; fetch it again")


def _is_packet(words: bytes) -> bool:
    try:
        values = [float(field) for field in words.split(b",")]
    except ValueError:
        return False
    return len(values) == _COLUMNS and bool(fit_float32(values).all())
