"""Reads a data set of several files into memory as a whole, which the library never does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, join_notes
from fedquilt_common.stored_samples import join_samples
from fedquilt_common.types import Dataset, Examples


def join_parts(parted: PartedDataset) -> Dataset:
    """Read all parts into memory.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    parts = [read() for read in parted.readers]
    train, test = ([part for part in parts if part.split == split] for split in ("train", "test"))
    subjects = [part.subjects for part in train if part.subjects is not None]
    return Dataset(
        parted.name,
        _join_examples(train),
        _join_examples(test),
        parted.classes,
        np.concatenate(subjects) if subjects else None,
        join_notes([parted.note, *(part.note for part in parts)]),
        parted.task,
    )


def _join_examples(parts: Sequence[DatasetPart]) -> Examples:
    return Examples(
        join_samples([part.examples.x for part in parts]), np.concatenate([part.examples.y for part in parts])
    )
