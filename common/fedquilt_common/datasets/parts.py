"""Data sets that are read one published file at a time, so that memory never holds all of their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.types import Examples

Split = Literal["train", "test"]


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
    """

    name: str
    classes: int
    readers: Sequence[Callable[[], DatasetPart]]
    note: str = ""
    task: str = ""


def join_notes(notes: Sequence[str]) -> str:
    """Return the notes that are not empty as one text."""
    return "; ".join(note for note in notes if note)
