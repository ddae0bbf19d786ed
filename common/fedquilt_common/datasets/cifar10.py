"""CIFAR-10: 50,000 + 10,000 colour images of 32 x 32 in ten classes (Krizhevsky, 2009).

Reads the binary version in ``<FEDQUILT_DATA>/cifar10`` or the folder ``cifar-10-batches-bin`` in it:
``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``. A record is one label byte and three planes of 1024
bytes: red, green, blue. Files that hold only a part of a batch, such as ``data_batch_1.first4000.bin``, are read too,
in the order of their names; a note then says how many images are there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedquilt_common.datasets.files import (
    SUFFIXES,
    WHITE,
    dataset_folder,
    inner_folder,
    note_file,
    open_packed,
    read_records,
    unpacked_path,
)
from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, Split
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import as_samples
from fedquilt_common.types import Examples

NAME = "cifar10"
CLASSES = 10
SHAPE = (3, 32, 32)
_FOLDER = "cifar-10-batches-bin"
_RECORD = 1 + 3 * 32 * 32
_MOST = 10_000
"""Greatest number of records in a file."""


def load(folder: Path | None = None) -> PartedDataset:
    """Load CIFAR-10: ``x`` of shape (n, 3, 32, 32) from 0 to 1, stored as bytes; ``y`` int64 of shape (n,), 0 to 9.

    Raises:
        DataUnavailableError: a file is missing, damaged, or there twice.
    """
    place = inner_folder(dataset_folder(folder, NAME), _FOLDER)
    readers = [*_readers(place, "data_batch", "train"), *_readers(place, "test_batch", "test")]
    return PartedDataset(NAME, CLASSES, readers, published={"train": 50_000, "test": 10_000})


def _readers(place: Path, prefix: str, split: Split) -> list[Callable[[], DatasetPart]]:
    files = sorted(path for suffix in SUFFIXES for path in place.glob(f"{prefix}*.bin{suffix}"))
    if not files:
        raise DataUnavailableError(
            f"{place / prefix}*.bin: there is no such file, and none that also ends in {', '.join(SUFFIXES[1:])}; "
            "put the binary version of CIFAR-10 there"
        )
    found = dict[Path, str]()
    for path in files:
        note_file(found, unpacked_path(path), str(path))
    return [functools.partial(_read_part, path, split) for path in files]


def _read_part(path: Path, split: Split) -> DatasetPart:
    with open_packed(path) as stream:
        records = read_records(stream, _RECORD, _MOST, path)
    y = records[:, 0].astype(np.int64)
    if y.max() >= CLASSES:
        raise DataUnavailableError(f"{path}: has the label {y.max()}, above {CLASSES - 1}; fetch the file again")
    return DatasetPart(split, Examples(as_samples(records[:, 1:].reshape(-1, *SHAPE), WHITE), y))
