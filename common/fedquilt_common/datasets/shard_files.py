"""The samples of one client as a file: a safetensors container with training and test samples, stored as they are.

The same samples give the same bytes on every machine, so a file's SHA-256 identifies it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from fedquilt_common.errors import DataUnavailableError, PayloadError
from fedquilt_common.experiment.section import MOST
from fedquilt_common.stored_samples import as_samples, as_stored
from fedquilt_common.types import Dataset, Examples
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.data_messages import NumberType
from fedquilt_common.wire.message_base import Number, Word

_KEY: Final = "fedquilt-shard"
_FORMAT: Final = 1


@dataclass(frozen=True)
class DatasetForm:
    """What a data set's samples look like.

    Attributes:
        name: of the data set.
        shape: of a sample.
        dtype: of the samples.
        classes: number of classes; 0 for regression.
        task: as in ``Dataset``.
        label_shape: of the label of one sample.
        label_dtype: of the labels.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[tuple[Number, ...], Field(max_length=8)]
    dtype: NumberType
    classes: Annotated[int, Field(ge=0, le=MOST)]
    task: Word = ""
    label_shape: Annotated[tuple[Number, ...], Field(max_length=8)] = ()
    label_dtype: NumberType = "int64"

    def without_samples(self) -> Dataset:
        """Return a data set of this form that has no samples."""
        nothing = Examples(np.zeros((0, *self.shape), self.dtype), np.zeros((0, *self.label_shape), self.label_dtype))
        return Dataset(self.name, nothing, nothing, self.classes, task=self.task)


def form_of(dataset: Dataset) -> DatasetForm:
    """Return the form of a data set's samples."""
    x, y = dataset.train.x, dataset.train.y
    kind = dataset.input_shape, x.dtype.name, dataset.classes, dataset.task
    return DatasetForm(dataset.name, *kind, tuple(y.shape[1:]), y.dtype.name)


@dataclass(frozen=True)
class Shard:
    """The samples of one client.

    Attributes:
        train: those that it trains on, without sensor noise; as read from a file, without ``data.normalise``.
        test: those that it keeps for testing; there may be none.
    """

    train: Examples
    test: Examples


def write_shard(path: Path, shard: Shard) -> Blob:
    """Write a client's samples, without ``data.normalise``: who reads them applies it.

    Returns:
        The file with its digest.

    Raises:
        OSError: the file cannot be written.
    """
    parts = {"train": shard.train, "test": shard.test}
    stored = {split: as_stored(examples.x) for split, examples in parts.items()}
    arrays: dict[str, NDArray[Any]] = {f"{split}_x": samples.rows[:] for split, samples in stored.items()}
    arrays |= {f"{split}_y": examples.y for split, examples in parts.items()}
    divisors = {split: samples.divisor for split, samples in stored.items()}
    metadata = {_KEY: json.dumps({"format": _FORMAT, "divisors": divisors})}
    return write_arrays(path, arrays, None, metadata, digest="sha256")


def write_samples(path: Path, examples: Examples) -> Blob:
    """Write samples that all clients share, such as the official test samples. Raises as ``write_shard``."""
    return write_shard(path, Shard(examples, examples.take(np.zeros(0, np.int64))))


def read_shard(path: Path, form: DatasetForm) -> Shard:
    """Open a client's samples as memory maps.

    Raises:
        DataUnavailableError: the file is no shard, or its samples do not have the form.
    """
    try:
        arrays = FileArrays(path)
        facts = json.loads(arrays.metadata[_KEY])
        if facts["format"] != _FORMAT:
            raise ValueError(f"format {facts['format']}, this version of fedquilt reads {_FORMAT}")
        divisors: Mapping[str, float | None] = facts["divisors"]
        shard = Shard(*(_read_part(arrays, split, divisors[split]) for split in ("train", "test")))
    except (PayloadError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataUnavailableError(f"{path}: is not a shard of samples: {error}; delete it to get it again") from None
    for examples in (shard.train, shard.test):
        check_form(examples, form, str(path))
    return shard


def _read_part(arrays: FileArrays, split: str, divisor: float | None) -> Examples:
    x, y = arrays[f"{split}_x"], arrays[f"{split}_y"]
    if len(x) != len(y):
        raise ValueError(f"{len(x)} samples have {len(y)} labels")
    return Examples(x if divisor is None else as_samples(x, float(divisor)), y)


def check_form(examples: Examples, form: DatasetForm, where: str) -> None:
    """Check that samples have a form.

    Raises:
        DataUnavailableError: they have another shape, type or class.
    """
    x, y = examples.x, examples.y
    if tuple(x.shape[1:]) != form.shape or x.dtype.name != form.dtype:
        raise DataUnavailableError(
            f"{where}: its samples are {x.dtype.name} of shape {list(x.shape[1:])}, but those of the experiment are "
            f"{form.dtype} of shape {list(form.shape)}; use the samples of this experiment"
        )
    if tuple(y.shape[1:]) != form.label_shape or y.dtype.name != form.label_dtype:
        raise DataUnavailableError(
            f"{where}: its labels are {y.dtype.name} of shape {list(y.shape[1:])}, but those of the experiment are "
            f"{form.label_dtype} of shape {list(form.label_shape)}; use the samples of this experiment"
        )
    if form.classes and y.ndim == 1 and len(y) and not 0 <= y.min() <= y.max() < form.classes:
        raise DataUnavailableError(
            f"{where}: has labels from {y.min()} to {y.max()}, but the experiment has the classes 0 to "
            f"{form.classes - 1}; number them from 0"
        )


def shard_name(client: int) -> str:
    """Return the name of a client's file in a folder of shards."""
    return f"client-{client:05d}.safetensors"
