"""FEMNIST: handwritten digits and letters in 62 classes, 28 x 28 grey pixels, by the person who wrote them.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018; the images are those of EMNIST (Cohen et al., 2017).
Reads the JSON files that LEAF's ``preprocess.sh`` writes, in ``<FEDQUILT_DATA>/femnist``: all files in ``train`` and
in ``test``, or in those two of a folder ``data``. A file has the keys ``users``, ``num_samples`` and ``user_data``.
The writers are the natural clients; writers without samples are left out and counted.

Samples are in the order of the writers' names, who may be in any file. So the files are read one at a time, and what
they hold is kept in memory as packed bytes, about 1/20 of the samples as float32.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import PublishedFile, read_files
from fedquilt_common.datasets.files import WHITE, dataset_folder
from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, Split
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import as_samples
from fedquilt_common.types import Examples

NAME = "femnist"
CLASSES = 62
SIDE = 28
_KEYS = ("users", "num_samples", "user_data")
_BATCH = 50
"""Writers that are unpacked at a time."""


@dataclass(frozen=True)
class _Writer:
    """The samples of a writer.

    Attributes:
        pixels: packed numbers of shape (n, 28 x 28): bytes, or float32.
        are_bytes: whether the pixels are bytes, which are 255 times the samples.
        y: int64 of shape (n,).
    """

    pixels: bytes
    are_bytes: bool
    y: NDArray[np.int64]

    def unpack(self) -> NDArray[Any]:
        """Return the pixels as they are packed, of shape (n, 1, 28, 28)."""
        stored = np.frombuffer(zlib.decompress(self.pixels), np.uint8 if self.are_bytes else np.float32)
        return stored.reshape(-1, 1, SIDE, SIDE)


_Writers = dict[str, _Writer]


def load(folder: Path | None = None) -> PartedDataset:
    """Load FEMNIST: ``x`` of shape (n, 1, 28, 28) from 0 to 1, ``y`` int64 of shape (n,) from 0 to 61.

    ``x`` is stored as bytes if all pixels of the files are whole numbers divided by 255, else as float32.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names the file, and the line or the writer.
    """
    place = dataset_folder(folder, NAME)
    place = place / "data" if (place / "data").is_dir() else place
    train, without = _read_part(place / "train")
    test, _ = _read_part(place / "test")
    as_bytes = all(writer.are_bytes for writer in (*train.values(), *test.values()))
    readers = [*_make_readers("train", train, as_bytes), *_make_readers("test", test, as_bytes)]
    note = f"{NAME}: left out {without} writers without samples" if without else ""
    return PartedDataset(NAME, CLASSES, readers, note)


def _make_readers(split: Split, samples: _Writers, as_bytes: bool) -> Iterator[functools.partial[DatasetPart]]:
    writers = [samples[user] for user in sorted(samples)]
    for start in range(0, len(writers), _BATCH):
        yield functools.partial(_read_writers, split, writers[start : start + _BATCH], start, as_bytes)


def _read_writers(split: Split, writers: Sequence[_Writer], first: int, as_bytes: bool) -> DatasetPart:
    subjects = np.repeat(np.arange(first, first + len(writers)), [len(writer.y) for writer in writers])
    stored = [writer.unpack() for writer in writers]
    if as_bytes:
        x = as_samples(np.concatenate(stored), WHITE)
    else:
        x = np.concatenate([part if part.dtype == np.float32 else part / np.float32(WHITE) for part in stored])
    return DatasetPart(split, Examples(x, np.concatenate([writer.y for writer in writers])), subjects.astype(np.int64))


def _read_part(place: Path) -> tuple[_Writers, int]:
    """Return the samples of each writer, and how many writers have none."""
    samples, empty = _Writers(), 0
    for file in read_files(place, lambda name: name.endswith(".json")):
        for user, own in _read_users(file):
            if user in samples:
                raise DataUnavailableError(f"{file.where}: writer '{user}' is there twice; remove one of the two")
            if len(own):
                samples[user] = _pack(own)
            else:
                empty += 1
    if not samples:
        raise DataUnavailableError(
            f"{place}: holds no JSON file with samples; put the files there that LEAF's preprocess.sh writes"
        )
    return samples, empty


def _pack(own: Examples) -> _Writer:
    stored = np.rint(own.x * np.float32(WHITE)).astype(np.uint8)
    are_bytes = (stored / np.float32(WHITE)).tobytes() == own.x.tobytes()
    return _Writer(zlib.compress((stored if are_bytes else own.x).tobytes(), level=1), are_bytes, own.y)


def _read_users(file: PublishedFile) -> Iterator[tuple[str, Examples]]:
    content = _parse(file)
    users, counts, data = (content[key] for key in _KEYS)
    if len(users) != len(counts):
        raise DataUnavailableError(
            f"{file.where}: has {len(users)} users, but {len(counts)} num_samples; fetch the file again"
        )
    if not all(isinstance(user, str) for user in users):
        raise DataUnavailableError(f"{file.where}: has a user whose name is no text; fetch the file again")
    for user, count in zip(users, counts, strict=True):
        yield user, _read_user(data.get(user), count, f"{file.where}, writer '{user}'")


def _parse(file: PublishedFile) -> Mapping[str, Any]:
    try:
        content = json.loads(file.data)
    except json.JSONDecodeError as error:
        raise DataUnavailableError(
            f"{file.where}, line {error.lineno}: is not JSON ({error.msg}); fetch the file again"
        ) from None
    except UnicodeDecodeError as error:
        raise DataUnavailableError(f"{file.where}: is not text ({error}); fetch the file again") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        raise DataUnavailableError(f"{file.where}: cannot be read as JSON ({error}); fetch the file again") from None
    kinds = (list, list, dict)
    if not isinstance(content, dict) or not all(map(isinstance, map(content.get, _KEYS), kinds)):
        raise DataUnavailableError(
            f"{file.where}: lacks {', '.join(_KEYS)}, so it is not a file of LEAF; fetch the file again"
        )
    return content


def _read_user(data: Any, count: Any, where: str) -> Examples:
    try:
        x = np.asarray(data["x"], dtype=np.float32).reshape(-1, 1, SIDE, SIDE)
        y: NDArray[np.float64] = np.asarray(data["y"], dtype=np.float64).reshape(-1)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DataUnavailableError(
            f"{where}: x must be images of {SIDE * SIDE} numbers each, and y labels; fetch the file again"
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
