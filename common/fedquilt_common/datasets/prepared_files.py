"""Write and open a prepared data set: a folder with a manifest and the plain numbers of each array."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, Split, join_notes
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.files.durable import sync, write_durably
from fedquilt_common.stored_samples import FileRows, as_samples, as_stored
from fedquilt_common.types import Dataset, Examples

MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_BLOCK: Final = 8 << 20


@dataclass
class _ArrayFile:
    """An array that grows along its first axis, in a file of its plain numbers."""

    path: Path
    dtype: str
    sample: tuple[int, ...]
    divisor: float | None
    count: int = 0
    _file: BinaryIO = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._file = self.path.open("wb")

    def append(self, rows: NDArray[Any], where: str) -> None:
        samples = as_stored(rows)
        stored = samples.rows
        kind = (stored.dtype.str, tuple(stored.shape[1:]), samples.divisor)
        if kind != (self.dtype, self.sample, self.divisor):
            raise DataUnavailableError(
                f"{where}: its samples are {kind[0]} of shape {list(kind[1])}, those before them {self.dtype} of shape "
                f"{list(self.sample)}; all files of a data set must have samples of one kind"
            )
        step = max(1, _BLOCK // max(1, stored.dtype.itemsize * prod(self.sample)))
        for start in range(0, stored.shape[0], step):
            self._file.write(np.ascontiguousarray(stored[start : start + step]).data)
        self.count += stored.shape[0]

    def finish(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self.dtype, "shape": [self.count, *self.sample], "divisor": self.divisor}

    def close(self) -> None:
        self._file.close()


class PreparedWriter:
    """Writes parts to a folder as they come. A folder without a manifest is not finished."""

    def __init__(self, folder: Path, name: str, classes: int, task: str = "") -> None:
        """Start in an empty ``folder``, with the facts that the manifest keeps."""
        self._folder = folder
        self._facts: dict[str, Any] = {"format": _FORMAT, "name": name, "classes": classes, "task": task}
        self._arrays: dict[str, _ArrayFile] = {}

    def add(self, part: DatasetPart) -> None:
        """Append the samples of a part.

        Raises:
            DataUnavailableError: they are of another kind than those before them.
            OSError: the disk is full, or cannot be written.
        """
        arrays: dict[str, NDArray[Any] | None] = {
            f"{part.split}_x": part.examples.x, f"{part.split}_y": part.examples.y,
            "subjects": part.subjects if part.split == "train" else None,
        }  # fmt: skip
        for name, rows in arrays.items():
            if rows is not None:
                self._file_for(name, rows).append(rows, str(self._facts["name"]))

    def _file_for(self, name: str, rows: NDArray[Any]) -> _ArrayFile:
        if name not in self._arrays:
            samples = as_stored(rows)
            kind = samples.rows.dtype.str, tuple(samples.shape[1:]), samples.divisor
            self._arrays[name] = _ArrayFile(self._folder / f"{name}.bin", *kind)
        return self._arrays[name]

    def finish(self, note: str) -> None:
        """Write the manifest, which makes the folder complete.

        Raises:
            DataUnavailableError: there are no training or no test samples.
            OSError: the disk is full, or cannot be written.
        """
        for name in ("train_x", "test_x"):
            if name not in self._arrays or not self._arrays[name].count:
                split = name.removesuffix("_x")
                raise DataUnavailableError(f"{self._facts['name']}: has no {split} samples; fetch its files again")
        arrays = {name: file.finish() for name, file in self._arrays.items()}
        write_durably(self._folder / MANIFEST, json.dumps({**self._facts, "note": note, "arrays": arrays}))
        sync(self._folder)

    def close(self) -> None:
        """Close the files; they are finished or will be deleted."""
        for file in self._arrays.values():
            file.close()


def write_dataset(folder: Path, dataset: Dataset) -> None:
    """Write a data set that is in memory. Raises as ``PreparedWriter``."""
    writer = PreparedWriter(folder, dataset.name, dataset.classes, dataset.task)
    try:
        writer.add(DatasetPart("train", dataset.train, dataset.subjects))
        writer.add(DatasetPart("test", dataset.test))
        writer.finish(dataset.note)
    finally:
        writer.close()


def write_parts(folder: Path, parted: PartedDataset, parts: Iterable[DatasetPart]) -> None:
    """Write the parts of a data set as they come. Raises as ``PreparedWriter``."""
    writer, notes = PreparedWriter(folder, parted.name, parted.classes, parted.task), [parted.note]
    counts: dict[Split, int] = {"train": 0, "test": 0}
    try:
        for part in parts:
            writer.add(part)
            notes.append(part.note)
            counts[part.split] += len(part.examples)
        notes.append(parted.describe_missing(counts))
        writer.finish(join_notes(notes))
    finally:
        writer.close()


def open_prepared(folder: Path) -> Dataset:
    """Open a prepared data set. Its samples stay in their files; labels and subjects are read.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: the manifest is not one, or a file has another size than the manifest states.
    """
    manifest: Mapping[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest.get("format") != _FORMAT:
        raise ValueError(f"{folder} has format {manifest.get('format')}")
    arrays = {name: _open_array(folder / f"{name}.bin", entry) for name, entry in manifest["arrays"].items()}
    train, test = (
        Examples(arrays[f"{split}_x"], _read_only(np.asarray(arrays[f"{split}_y"]))) for split in ("train", "test")
    )
    subjects = _read_only(np.asarray(arrays["subjects"])) if "subjects" in arrays else None
    facts = (manifest[key] for key in ("note", "task"))
    return Dataset(manifest["name"], train, test, manifest["classes"], subjects, *facts)


def _open_array(path: Path, entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    if path.stat().st_size != dtype.itemsize * prod(shape):
        raise ValueError(f"{path} has {path.stat().st_size} bytes instead of {dtype.itemsize * prod(shape)}")
    return as_samples(FileRows.open(path, dtype, shape), entry["divisor"])


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
