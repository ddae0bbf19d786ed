"""Widar: nine hand gestures from Wi-Fi signals, as body velocity profiles of 20 x 20 velocities in 22 frames.

Zheng et al., "Zero-Effort Cross-Domain Gesture Recognition with Wi-Fi", MobiSys 2019; the data set is Widar3.0 (Yang,
IEEE DataPort, 2020). Reads the files of its part BVP, such as ``BVP/20181130-VS/6-link/user5/user5-1-1-1-1-....mat``,
in ``<FEDQUILT_DATA>/widar``: in folders or archives. Their key ``velocity_spectrum_ro`` holds 20 x 20 x T numbers. The
name consists of person, gesture, location, orientation and repetition. What a gesture's number means depends on the
session, whose date is in the path. Needs SciPy.

The preparation is FedAIoT's (Alam et al., journal paper, sections 3.1 and 3.2.2): the nine gestures of more than three
persons, shape 22 x 20 x 20, standardised by one mean and one variance, and persons either for training or for testing,
two to one. The paper names neither gestures nor persons. The nine here are those of the session with nine gestures; a
digest of a person's number chooses the test persons. Short profiles are padded with zeros at the end and long ones
cut, before they are standardised. Empty files are left out. The note counts cut profiles and empty files.
"""

from __future__ import annotations

import io
import re
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import PublishedFile, read_files
from fedquilt_common.datasets.files import dataset_folder, note_file
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.tables import fit_float32
from fedquilt_common.datasets.windows import hold_out, standardise_channels
from fedquilt_common.errors import DataUnavailableError, how_to_install
from fedquilt_common.types import Dataset, Examples

NAME = "widar"
GESTURES = (
    "push and pull", "sweep", "clap", "slide", "draw O", "draw zigzag", "draw N", "draw triangle", "draw rectangle",
)  # fmt: skip
"""Those of session 20181130; vertical drawings and digits are left out."""
FRAMES, SIDE = 22, 20
KEY = "velocity_spectrum_ro"
_NO = None
_DIGITS = (_NO,) * 10
_DRAWINGS = (3, 4, 5, 6, 7, 8)
_ALL = (0, 1, 2, 3, 4, 5, 6, 7, 8)
SESSIONS: dict[str, tuple[int | None, ...]] = {
    "20181109": (0, 1, 2, 3, _NO, _NO),
    "20181112": _DIGITS,
    "20181115": (0, 1, 2, _NO, _NO, _NO),
    "20181116": _DIGITS,
    "20181117": (0, 1, 2, _NO, _NO, _NO),
    "20181118": (0, 1, 2, _NO, _NO, _NO),
    "20181121": _DRAWINGS,
    "20181127": _DRAWINGS,
    "20181128": (0, 1, 2, 4, 5, 6),
    "20181130": _ALL,
    "20181204": _ALL,
    "20181205/user2": (4, 5, 6, 7, 8),
    "20181205/user3": _DRAWINGS,
    "20181208": (0, 1, 2, 3),
    "20181209": (0, 1, 2, 3, 4, 5),
    "20181211": (0, 1, 2, 3, 4, 5),
}
"""Class of gesture 1, 2, ... in each session or of a person in it, as users of the data publish it; None: left out."""
_FILE = re.compile(r"user(\d+)-(\d+)-\d+-\d+-\d+.*\.mat")
_DATE = re.compile(r"20\d{6}")


def load(folder: Path | None = None) -> Dataset:
    """Load the profiles: ``x`` float32 of shape (n, 22, 20, 20), ``y`` int64 of shape (n,) from 0 to 8.

    Raises:
        DataUnavailableError: files are missing, damaged or there twice, or SciPy is not installed.
    """
    place = dataset_folder(folder, NAME)
    profiles, labels, persons, repairs = _read_profiles(place)
    if len(set(persons)) < 2:
        raise DataUnavailableError(
            f"{place}: has profiles of {len(set(persons))} persons, but a person for training and one for testing are "
            "needed; put the folder BVP of Widar3.0 there"
        )
    test_persons = hold_out(persons, 1 / 3)
    is_test = np.isin(persons, list(test_persons))
    y, person = np.array(labels, dtype=np.int64), np.array(persons, dtype=np.int64)
    train, test = (
        Examples(np.stack([profiles[i] for i in np.flatnonzero(chosen)]), y[chosen]) for chosen in (~is_test, is_test)
    )
    standardise_channels(*(part.x.reshape(len(part.x), 1, -1) for part in (train, test)))
    notes = [f"persons {', '.join(map(str, sorted(test_persons)))} are the test set"]
    notes += describe_repairs(repairs)
    return Dataset(NAME, train, test, len(GESTURES), person[~is_test], f"{NAME}: {'; '.join(notes)}")


def _read_profiles(place: Path) -> tuple[list[NDArray[np.float32]], list[int], list[int], Counter[str]]:
    """Return the profiles, the class and the person of each, and what was repaired."""
    profiles, labels, persons = list[NDArray[np.float32]](), list[int](), list[int]()
    found, repairs = dict[tuple[str, ...], str](), Counter[str]()
    for file in read_files(place, _FILE.fullmatch):
        person, gesture = map(int, _FILE.findall(file.name)[0])
        inner = file.where.removeprefix(str(place))
        label = _find_class(file, inner, person, gesture)
        if label is None:
            continue
        note_file(found, (*_find_session(inner), file.name), file.where)
        values = _read_values(file)
        if not values.size:
            repairs["empty files left out"] += 1
            continue
        repairs["profiles cut to 22 frames"] += values.shape[2] > FRAMES
        profiles.append(pad_frames(values))
        labels.append(label)
        persons.append(person)
    return profiles, labels, persons, repairs


def _find_session(inner: str) -> list[str]:
    """Return the folders of a file from that of its session on: the same in folders and in archives."""
    *_, session = _DATE.finditer(inner)
    return re.split(r"[/\\]", re.sub(r"(\.\w+)+, ", "/", inner[session.start() :]))[:-1]


def _find_class(file: PublishedFile, inner: str, person: int, gesture: int) -> int | None:
    """Return the class of a gesture's number in the session that ``inner`` names; None if it is left out.

    ``inner`` is the file's path below the folder of the data set: a date above it is of no session.
    """
    dates = _DATE.findall(inner)
    keys = [key for date in dates[-1:] for key in (f"{date}/user{person}", date) if key in SESSIONS]
    if not keys:
        raise DataUnavailableError(
            f"{file.where}: its path names no session of Widar3.0 with person {person}, such as 20181130-VS, so the "
            "gesture is unknown; keep the folders as they are published"
        )
    classes = SESSIONS[keys[0]]
    if gesture == 0 and len(classes) == len(_DIGITS):
        return None
    if not 1 <= gesture <= len(classes):
        raise DataUnavailableError(
            f"{file.where}: gesture {gesture} is not from 1 to {len(classes)}, as session {keys[0]} has them; "
            "fetch the file again"
        )
    return classes[gesture - 1]


def _read_values(file: PublishedFile) -> NDArray[np.float64]:
    """Return a profile of shape (20, 20, T), or an array without elements."""
    try:
        from scipy.io import loadmat  # not at the top: it would cost an idle agent memory
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise DataUnavailableError(f"the data set '{NAME}' needs SciPy; {how_to_install('client')}") from error
    if not file.data:
        return np.empty(0)
    try:
        values = np.asarray(loadmat(io.BytesIO(file.data), variable_names=[KEY])[KEY], dtype=np.float64)
    except (KeyError, ValueError, TypeError, NotImplementedError, OSError, EOFError, MatReadError, zlib.error) as error:
        raise DataUnavailableError(
            f"{file.where}: has no {KEY} that can be read ({error}); fetch the file again"
        ) from None
    values = values[..., None] if values.ndim == 2 and values.size else values  # MATLAB drops a last dimension of 1
    if values.size and (values.ndim != 3 or values.shape[:2] != (SIDE, SIDE) or not fit_float32(values).all()):
        raise DataUnavailableError(
            f"{file.where}: {KEY} has the shape {values.shape}, or values that are not finite or too large, instead of "
            f"{SIDE} x {SIDE} x T numbers; fetch the file again"
        )
    return values


def pad_frames(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return a profile as 22 frames: zeros follow a short one, and a long one is cut.

    Args:
        values: of shape (20, 20, T).

    Returns:
        float32 of shape (22, 20, 20).
    """
    frames = np.zeros((FRAMES, SIDE, SIDE), dtype=np.float32)
    kept = values[:, :, :FRAMES].transpose(2, 0, 1)
    frames[: len(kept)] = kept
    return frames
