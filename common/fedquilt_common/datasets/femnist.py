"""FEMNIST: handwritten digits and letters in 62 classes, 28 x 28 grey pixels, by the person who wrote them.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018; the images are those of EMNIST (Cohen et al., 2017).
Reads the JSON files that LEAF's ``preprocess.sh`` writes, in ``<FEDQUILT_DATA>/femnist``: all files in ``train`` and
in ``test``, or in those two of a folder ``data``. A file has the keys ``users``, ``num_samples`` and ``user_data``.
Files are read one at a time. The writers are the natural clients; writers without samples are left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import PublishedFile, read_files
from fedquilt_common.datasets.files import dataset_folder
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME = "femnist"
CLASSES = 62
SIDE = 28
_KEYS = ("users", "num_samples", "user_data")
_Writers = dict[str, Examples]


def load(folder: Path | None = None) -> Dataset:
    """Load FEMNIST: ``x`` float32 of shape (n, 1, 28, 28) from 0 to 1, ``y`` int64 of shape (n,) from 0 to 61.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names the file, and the line or the writer.
    """
    place = dataset_folder(folder, NAME)
    place = place / "data" if (place / "data").is_dir() else place
    train, without = _read_part(place / "train")
    test, _ = _read_part(place / "test")
    subjects = np.repeat(np.arange(len(train)), [len(train[user]) for user in sorted(train)])
    note = f"{NAME}: left out {without} writers without samples" if without else ""
    return Dataset(NAME, _join(train), _join(test), CLASSES, subjects.astype(np.int64), note)


def _join(samples: _Writers) -> Examples:
    parts = [samples[user] for user in sorted(samples)]
    return Examples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def _read_part(place: Path) -> tuple[_Writers, int]:
    """Return the samples of each writer, and how many writers have none."""
    samples, empty = dict[str, Examples](), 0
    for file in read_files(place, lambda name: name.endswith(".json")):
        for user, own in _read_users(file):
            if user in samples:
                raise DataUnavailableError(f"{file.where}: writer '{user}' is in two files; remove one of them")
            if len(own):
                samples[user] = own
            else:
                empty += 1
    if not samples:
        raise DataUnavailableError(
            f"{place}: holds no JSON file with samples; put the files there that LEAF's preprocess.sh writes"
        )
    return samples, empty


def _read_users(file: PublishedFile) -> Iterator[tuple[str, Examples]]:
    content = _parse(file)
    users, counts, data = (content[key] for key in _KEYS)
    if len(users) != len(counts):
        raise DataUnavailableError(
            f"{file.where}: has {len(users)} users, but {len(counts)} num_samples; fetch the file again"
        )
    for user, count in zip(users, counts, strict=True):
        yield user, _read_user(data.get(user), count, f"{file.where}, writer '{user}'")


def _parse(file: PublishedFile) -> Mapping[str, Any]:
    try:
        content = json.loads(file.data)
    except json.JSONDecodeError as error:
        raise DataUnavailableError(
            f"{file.where}, line {error.lineno}: is no JSON ({error.msg}); fetch the file again"
        ) from None
    except UnicodeDecodeError as error:
        raise DataUnavailableError(f"{file.where}: is no text ({error}); fetch the file again") from None
    kinds = (list, list, dict)
    if not isinstance(content, dict) or not all(map(isinstance, map(content.get, _KEYS), kinds)):
        raise DataUnavailableError(
            f"{file.where}: lacks {', '.join(_KEYS)}, so it is no file of LEAF; fetch the file again"
        )
    return content


def _read_user(data: Any, count: Any, where: str) -> Examples:
    try:
        x = np.asarray(data["x"], dtype=np.float32).reshape(-1, 1, SIDE, SIDE)
        y: NDArray[np.float64] = np.asarray(data["y"], dtype=np.float64).reshape(-1)
    except (KeyError, TypeError, ValueError) as error:
        raise DataUnavailableError(
            f"{where}: x must be images of {SIDE * SIDE} numbers, and y labels ({error}); fetch the file again"
        ) from None
    if not len(x) == len(y) == count:
        raise DataUnavailableError(
            f"{where}: has {len(x)} images and {len(y)} labels, but num_samples is {count}; fetch the file again"
        )
    if not np.isin(y, np.arange(CLASSES)).all():
        raise DataUnavailableError(f"{where}: has a label that is not from 0 to {CLASSES - 1}; fetch the file again")
    if not ((x >= 0) & (x <= 1)).all():
        raise DataUnavailableError(f"{where}: has a pixel that is not from 0 to 1; fetch the file again")
    return Examples(x, y.astype(np.int64))
