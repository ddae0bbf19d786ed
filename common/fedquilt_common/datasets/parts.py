"""Data sets that are read one published file at a time, so that memory never holds all of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Examples

Split = Literal["train", "test"]
_SPLITS: Final[Mapping[Split, str]] = {"train": "training", "test": "test"}


@dataclass(frozen=True)
class DatasetPart:
    """What one published file contributes.

    Attributes:
        split: where its samples belong.
        examples: the samples; ``x`` of all parts has the same dtype and the same shape but for the first axis.
        subjects: the person or device of each sample, int64 of shape (n,); None if unknown. In all parts of the
            training samples, or in none.
        note: a fact about this file that readers of the results need; empty if there is none.
    """

    split: Split
    examples: Examples
    subjects: NDArray[np.int64] | None = None
    note: str = ""


@dataclass(frozen=True)
class PartedDataset:
    """A data set as its readers, for a loader whose files do not fit into memory together.

    Attributes:
        name: its key in ``DATASETS``.
        classes: number of classes; 0 for regression.
        readers: each reads one file; several run at a time, in threads. They raise ``DataUnavailableError`` if the file
            is damaged.
        note: a fact that readers of the results need.
        task: as in ``Dataset``.
        published: number of samples of each split as it was published; a note says how many of them are there. None
            if the readers do not accept a part of them.
    """

    name: str
    classes: int
    readers: Sequence[Callable[[], DatasetPart]]
    note: str = ""
    task: str = ""
    published: Mapping[Split, int] | None = None

    def describe_missing(self, counts: Mapping[Split, int]) -> str:
        """Return how many of the published samples are there; empty if all are.

        Raises:
            DataUnavailableError: there are more than were published.
        """
        whole = self.published or counts
        for split in whole:
            if counts[split] > whole[split]:
                raise DataUnavailableError(
                    f"{self.name}: its files hold {counts[split]:,} {_SPLITS[split]} samples, but only "
                    f"{whole[split]:,} are published, so some are there twice; remove the copies"
                )
        if all(counts[split] >= whole[split] for split in whole):
            return ""
        there = " and ".join(f"{counts[split]:,} of {whole[split]:,} {_SPLITS[split]}" for split in whole)
        return f"{self.name}: {there} samples are there"


def join_notes(notes: Sequence[str]) -> str:
    """Return the notes that are not empty as one text."""
    return "; ".join(note for note in notes if note)
