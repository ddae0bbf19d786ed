"""CIFAR-100: 50,000 + 10,000 colour images of 32 x 32 in a hundred classes (Krizhevsky, 2009).

Reads the binary version in ``<FEDQUILT_DATA>/cifar100`` or the folder ``cifar-100-binary`` in it: ``train.bin`` and
``test.bin``. A record is the coarse label from 0 to 19, the fine label from 0 to 99, and three planes of 1024 bytes:
red, green, blue. The classes are the fine labels.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from fedquilt_common.datasets.files import WHITE, dataset_folder, find_file, inner_folder, open_packed, read_records
from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, Split
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import as_samples
from fedquilt_common.types import Examples

NAME = "cifar100"
COARSE, CLASSES = 20, 100
SHAPE = (3, 32, 32)
_FOLDER = "cifar-100-binary"
_RECORD = 2 + 3 * 32 * 32
_MOST = 50_000
"""Greatest number of records in a file."""


def load(folder: Path | None = None) -> PartedDataset:
    """Load CIFAR-100: ``x`` of shape (n, 3, 32, 32) from 0 to 1, stored as bytes; ``y`` int64 of shape (n,), 0 to 99.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    place = inner_folder(dataset_folder(folder, NAME), _FOLDER)
    splits: tuple[Split, Split] = ("train", "test")
    files = {split: find_file(place, f"{split}.bin") for split in splits}
    readers = [functools.partial(_read_part, path, split) for split, path in files.items()]
    return PartedDataset(NAME, CLASSES, readers, published={"train": 50_000, "test": 10_000})


def _read_part(path: Path, split: Split) -> DatasetPart:
    with open_packed(path) as stream:
        records = read_records(stream, _RECORD, _MOST, path)
    for column, kind, count in ((0, "coarse", COARSE), (1, "fine", CLASSES)):
        wrong = np.flatnonzero(records[:, column] >= count)
        if len(wrong):
            raise DataUnavailableError(
                f"{path}, record {wrong[0] + 1}: has the {kind} label {records[wrong[0], column]}, above {count - 1}; "
                "fetch the file again"
            )
    x = as_samples(records[:, 2:].reshape(-1, *SHAPE), WHITE)
    return DatasetPart(split, Examples(x, records[:, 1].astype(np.int64)))
