"""Samples that stay as they are stored until a batch of them is read.

Bytes stay bytes, and a file's samples stay in the file: a client of CIFAR-10 then takes a quarter of the memory, and
all processes of a machine share the system's page cache.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

RowIndex = slice | NDArray[np.int64] | NDArray[np.bool_]
"""Which rows: a slice, positions of shape (m,), or a mask of shape (n,)."""
_SMALL: Final = 16 << 20
"""Bytes up to which a selection of a file's rows is read at once: reading row by row costs more than it saves."""


class Rows(Protocol):
    """The rows of an array, as stored; a numpy array is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (n, *sample)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the stored numbers."""

    def __getitem__(self, index: RowIndex, /) -> NDArray[Any]:
        """Return rows in the order of ``index``, as stored."""


class _OpenFile:
    """A file that stays open until the last array on it is gone, so that it can be replaced meanwhile."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(frozen=True, eq=False)
class FileRows:
    """Some rows of an array in a file, which are read when they are used.

    Reading with ``pread`` keeps the file's pages out of this process' memory; a memory map would add the neighbours of
    each row to it.

    Args:
        file: the open file.
        dtype: of the stored numbers.
        sample: the shape of a row.
        positions: positions in the file, int64 of shape (n,).
        offset: first byte of the array in the file.
    """

    file: _OpenFile
    dtype: np.dtype[Any]
    sample: tuple[int, ...]
    positions: NDArray[np.int64]
    offset: int = 0

    @classmethod
    def open(cls, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int = 0) -> FileRows:
        """Open an array of shape (n, *sample) that starts ``offset`` bytes into the file ``path``.

        Raises:
            OSError: the file cannot be opened.
        """
        return cls(_OpenFile(path), dtype, shape[1:], np.arange(shape[0]), offset)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (n, *sample)."""
        return len(self.positions), *self.sample

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * prod(self.sample)

    def __getitem__(self, index: RowIndex, /) -> NDArray[Any]:
        """Read rows in the order of ``index``.

        Raises:
            OSError: the file cannot be read, or is shorter than it was.
        """
        return self._read(self.positions[index])

    def select(self, index: RowIndex) -> Rows:
        """Return some of the rows: read at once if they are small, else when they are used."""
        chosen = self.positions[index]
        if len(chosen) * self.row_bytes <= _SMALL:
            return self._read(chosen)
        return FileRows(self.file, self.dtype, self.sample, chosen, self.offset)

    def _read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(positions), *self.sample), self.dtype)
        if out.nbytes == 0:
            return out
        rows = out.reshape(len(positions), -1).view(np.uint8).data
        breaks = np.flatnonzero(np.diff(positions) != 1) + 1
        starts = [0, *breaks.tolist()]
        for start, end in zip(starts, [*starts[1:], len(positions)], strict=True):
            self._fill(rows[start:end].cast("B"), self.offset + int(positions[start]) * self.row_bytes)
        return out

    def _fill(self, target: memoryview, offset: int) -> None:
        while len(target):
            count = os.preadv(self.file.descriptor, [target], offset)
            if not count:
                raise OSError(f"a file of samples ends at byte {offset}, before its last sample; prepare it again")
            target, offset = target[count:], offset + count


@dataclass(frozen=True)
class Scaling:
    """The scale of samples: (sample - mean) / std.

    Attributes:
        mean: one number, or one for each channel.
        std: one number above 0, or one for each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Scale floating-point samples of shape (n, channels, ...); shape and dtype stay."""
        shape = (-1, *[1] * (samples.ndim - 2))
        mean, std = (np.array(numbers, samples.dtype).reshape(shape) for numbers in (self.mean, self.std))
        scaled: NDArray[Any] = (samples - mean) / std
        return scaled


@dataclass(frozen=True, eq=False)
class StoredSamples(NDArrayOperatorsMixin):
    """Samples of shape (n, *input_shape) that are converted when they are read.

    They behave as a read-only numpy array: ``samples[index]`` returns an array of those samples, and ``np.asarray``,
    operators and methods such as ``max`` convert all of them.

    Args:
        rows: the samples as stored.
        divisor: what stored numbers are divided by; the samples are float32 then. None: the samples are as stored.
        scaling: applied to the divided numbers, which are floating-point numbers then; None: none.
    """

    rows: Rows
    divisor: float | None = None
    scaling: Scaling | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (n, *input_shape)."""
        return tuple(self.rows.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the samples."""
        return self.rows.dtype if self.divisor is None else np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions, including that of the samples."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Return samples as an array, in the order of ``index``; any index that numpy accepts."""
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if isinstance(first, int | np.integer):
            position = range(len(self))[first]
            chosen = self._convert(self.rows[position : position + 1])[0]
            return chosen[rest] if rest else chosen
        if isinstance(first, slice) or (isinstance(first, np.ndarray | list) and np.ndim(first) == 1):
            chosen = self._convert(self.rows[first if isinstance(first, slice) else np.asarray(first)])
            columns: tuple[Any, ...] = (slice(None), *rest)
            return chosen[columns] if rest else chosen
        return np.asarray(self)[index]

    def select(self, index: NDArray[np.int64]) -> StoredSamples:
        """Return some of the samples, still as stored.

        Args:
            index: positions of shape (m,), in the order in which the samples are returned.
        """
        rows = self.rows.select(index) if isinstance(self.rows, FileRows) else self.rows[index]
        return StoredSamples(rows, self.divisor, self.scaling)

    def _convert(self, stored: NDArray[Any]) -> NDArray[Any]:
        samples = stored
        if self.divisor is not None:
            samples = np.divide(stored, np.float32(self.divisor), dtype=np.float32)
        return samples if self.scaling is None else self.scaling.apply(samples)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Convert all samples."""
        return self._convert(self.rows[:]).astype(dtype or self.dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute with all samples, converted."""
        plain = [np.asarray(value) if isinstance(value, StoredSamples) else value for value in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def setflags(self, *, write: bool) -> None:
        """Do nothing: stored samples cannot be written."""

    def __getattr__(self, name: str) -> Any:
        """Look up numpy's methods, such as ``mean``, on all samples, converted."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def as_samples(rows: Rows, divisor: float | None = None) -> NDArray[Any]:
    """Return ``StoredSamples``, typed as the array that they behave as."""
    return cast("NDArray[Any]", StoredSamples(rows, divisor))


def as_stored(samples: NDArray[Any]) -> StoredSamples:
    """Return the samples as they are stored; plain arrays are stored as they are."""
    return samples if isinstance(samples, StoredSamples) else StoredSamples(samples)


def scale_samples(samples: NDArray[Any], scaling: Scaling) -> NDArray[Any]:
    """Return floating-point samples of shape (n, channels, ...) that are scaled when they are read."""
    return cast("NDArray[Any]", replace(as_stored(samples), scaling=scaling))


def change_unscaled(samples: NDArray[Any], change: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Return changed samples of shape (n, channels, ...); the change applies before they are scaled.

    Args:
        samples: n samples.
        change: returns new samples of the same shape and dtype.
    """
    stored = as_stored(samples)
    changed = change(np.asarray(replace(stored, scaling=None)))
    return changed if stored.scaling is None else stored.scaling.apply(changed)


def join_samples(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join samples along the first axis; they stay as stored if all parts are stored alike."""
    if len(parts) == 1:
        return parts[0]
    stored = [as_stored(part) for part in parts]
    kinds = {(part.divisor, part.scaling) for part in stored}
    if len(kinds) == 1:
        joined = np.concatenate([part.rows[:] for part in stored])
        return joined if kinds == {(None, None)} else cast("NDArray[Any]", replace(stored[0], rows=joined))
    return np.concatenate([np.asarray(part) for part in parts])
