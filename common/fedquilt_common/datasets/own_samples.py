"""Read samples that a board has of its own: CSV, Parquet, NPZ or safetensors files, or a function of its owner.

A table has a header, a column ``label`` (or ``label_0``, ``label_1`` and so on), and the features of a sample in the
columns that ``data.form.columns`` names, else in all others, in the order of the flattened sample. NPZ and safetensors
files hold the arrays ``x`` and ``y``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.shard_files import DatasetForm, check_form
from fedquilt_common.datasets.tables import fit_float32
from fedquilt_common.errors import DataUnavailableError, FedquiltError, PayloadError, how_to_install
from fedquilt_common.experiment.data_section import LABEL_COLUMN
from fedquilt_common.plurals import counted, plural
from fedquilt_common.types import Examples
from fedquilt_common.user_imports import USER_ERRORS, describe_error, describe_sys_exit, package_of, resolve
from fedquilt_common.wire.codec import FileArrays

_NUMBER: Final = re.compile(r"[\s\d.eE+-]+", re.ASCII)
"""The characters of a decimal number: Python reads ``1_5`` and the digits of other scripts, too."""
_NUMERIC: Final = "biuf"
"""Kinds of numpy's types that are numbers."""
_KEPT: Final = 4
"""Files whose samples stay in a process' memory, so that a client's next task does not read them again."""


@dataclass(frozen=True)
class _OwnArrays:
    """What a source holds: x of shape (n, ...), y of shape (n, ...), and the line of each sample in a text file."""

    x: NDArray[Any]
    y: NDArray[Any]
    lines: Sequence[int] = ()

    def place(self, source: str, sample: int) -> str:
        """Return the place of a sample, for messages."""
        return f"{source}:{self.lines[sample]}" if self.lines else f"{source}, sample {sample + 1}"


def read_own_samples(
    source: str, form: DatasetForm, allowed: Collection[str] = (), columns: tuple[str, ...] = ()
) -> Examples:
    """Read the samples of a client, and check them against the experiment's form.

    Args:
        source: a file that ends in ``.csv``, ``.parquet``, ``.npz`` or ``.safetensors``; or ``package:factory``, a
            function without arguments that returns ``(x, y)``.
        form: what the samples must look like.
        allowed: packages from which a factory may come.
        columns: the feature columns of a table, in the order of the flattened sample; empty: all but the labels.

    Raises:
        DataUnavailableError: the file is missing or damaged, the factory raises an error, or the samples have another
            form or numbers that the form's types cannot hold.
        ForbiddenImportError: the factory's package is not allowed.
    """
    if Path(source).suffix.lower() in _READERS:
        return _read_file(source, form, columns)
    if ":" in source:
        return _check(_call_factory(source, allowed), form, source)
    raise DataUnavailableError(
        f"{source}: is neither package:factory nor a file that ends in {', '.join(_READERS)}; convert it"
    )


def _read_file(source: str, form: DatasetForm, columns: tuple[str, ...]) -> Examples:
    path = Path(source)
    try:
        state = path.stat()
    except OSError as error:
        raise DataUnavailableError(f"{path}: {error.strerror}; correct the agent's --data") from None
    if not path.is_file():
        raise DataUnavailableError(f"{path}: is not a file; correct the agent's --data")
    return _read_once(source, form, columns, (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=_KEPT)
def _read_once(source: str, form: DatasetForm, columns: tuple[str, ...], _state: tuple[int, int]) -> Examples:
    """Read and check a file; ``_state`` changes with it, so that a changed file is read again."""
    path = Path(source)
    samples = _check(_READERS[path.suffix.lower()](path, form, columns), form, source)
    for array in (samples.x, samples.y):
        array.setflags(write=False)  # all tasks of the process share it
    return samples


def _check(own: _OwnArrays, form: DatasetForm, source: str) -> Examples:
    if not own.x.ndim or not own.y.ndim:
        raise DataUnavailableError(f"{source}: x or y is a single value; make them arrays with one row for each sample")
    if not len(own.x) and not len(own.y):
        raise DataUnavailableError(f"{source}: holds no samples; give the client at least one")
    if len(own.x) != len(own.y):
        raise DataUnavailableError(
            f"{source}: has {len(own.x)} samples and {len(own.y)} labels; each sample needs one label"
        )
    x, y = _cast(own, "x", form.dtype, source), _cast(own, "y", form.label_dtype, source)
    if y.shape[1:] != form.label_shape and y.size == len(y) * prod(form.label_shape):
        y = y.reshape(len(y), *form.label_shape)
    if form.classes and not form.label_shape:
        reason = f"the label is not one of the experiment's classes, 0 to {form.classes - 1}; correct it"
        _check_each(own, source, (y >= 0) & (y < form.classes), reason)
    samples = Examples(x, y)
    check_form(samples, form, source)
    return samples


def _cast(own: _OwnArrays, name: str, dtype: str, source: str) -> NDArray[Any]:
    """Return ``x`` or ``y`` as the experiment's type, after a check that the type can hold its values."""
    array: NDArray[Any] = getattr(own, name)
    if array.dtype.kind not in _NUMERIC:
        raise DataUnavailableError(f"{source}: {name} holds {array.dtype}, not numbers; convert it")
    _check_each(own, source, np.isfinite(array), f"a value of {name} is not finite; repair or remove the sample")
    if np.dtype(dtype).kind in "iu" and array.dtype.kind == "f":
        reason = f"a value of {name} is not a whole number, but the experiment needs {dtype}; correct it"
        _check_each(own, source, array == np.rint(array), reason)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype, copy=False)
    reason = f"a value of {name} is too large or too small for {dtype}; correct or scale it"
    _check_each(own, source, _is_held(array, cast), reason)
    return cast


def _is_held(array: NDArray[Any], cast: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each number whether it survived the conversion to another type.

    Processors differ in what they make of a float beyond an integer's range, so floats are compared with the range.
    """
    if cast.dtype.kind not in "iu":
        held = fit_float32(array)
    elif array.dtype.kind == "f":
        limits, exact = np.iinfo(cast.dtype), array.astype(np.float64)
        held = (exact >= float(limits.min)) & (exact < float(limits.max + 1))
    else:
        held = (cast.astype(array.dtype) == array) & ((cast < 0) == (array < 0))
    return held


def _check_each(own: _OwnArrays, source: str, is_right: NDArray[np.bool_], reason: str) -> None:
    wrong = np.flatnonzero(~is_right.reshape(len(is_right), -1).all(axis=1))
    if len(wrong):
        more = f" ({len(wrong)} samples are like this)" if len(wrong) > 1 else ""
        raise DataUnavailableError(f"{own.place(source, int(wrong[0]))}: {reason}{more}")


@dataclass(frozen=True)
class _ChosenColumns:
    """The columns of a table that a sample is made of: features in its flattened order, labels by their numbers."""

    features: Sequence[str]
    labels: Sequence[str]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.features, *self.labels)

    def stack(self, table: Mapping[str, NDArray[Any]], form: DatasetForm, lines: Sequence[int] = ()) -> _OwnArrays:
        """Return the samples of a table, of which each column has shape (n,)."""
        x = np.stack([table[name] for name in self.features], axis=1).reshape(-1, *form.shape)
        y = np.stack([table[name] for name in self.labels], axis=1)
        return _OwnArrays(x, y if form.label_shape else y[:, 0], lines)


def _choose_columns(names: Sequence[str], path: Path, form: DatasetForm, columns: tuple[str, ...]) -> _ChosenColumns:
    labels = sorted((name for name in names if LABEL_COLUMN.fullmatch(name)), key=_label_number)
    others = [name for name in names if not LABEL_COLUMN.fullmatch(name)]
    features = _find_features(names, columns, path) if columns else others
    targets = max(1, prod(form.label_shape))
    distinct = len({_label_number(name) for name in labels}) == len(labels) == targets
    if not distinct or len(features) != prod(form.shape):
        raise DataUnavailableError(
            f"{path}: has {counted(len(features), 'feature column')} and {counted(len(labels), 'label column')}, but "
            f"the experiment needs {counted(prod(form.shape), 'feature')} (samples of shape {list(form.shape)}) and "
            f"{counted(targets, 'label')}; name a label column 'label', and several 'label_0', 'label_1' and so on"
        )
    return _ChosenColumns(features, labels)


def _label_number(name: str) -> int:
    """Return the number in the name of a label's column, 0 for ``label``."""
    return int(name.removeprefix("label").removeprefix("_") or 0)


def _check_types(table: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Check that columns hold numbers, while their names are known."""
    for name, column in table.items():
        if column.dtype.kind not in _NUMERIC:
            held = type(column[0]).__name__ if column.dtype.kind == "O" and len(column) else str(column.dtype)
            raise DataUnavailableError(
                f"{path}: the column '{name[:40]}' holds {held}, not numbers; convert it, or name the features in "
                "data.form.columns without it"
            )


def _find_features(names: Sequence[str], columns: Sequence[str], path: Path) -> Sequence[str]:
    known = set(names)
    missing = [name for name in columns if name not in known]
    if missing:
        raise DataUnavailableError(
            f"{path}: lacks the {plural('column', len(missing))} {', '.join(missing[:10])} of "
            "data.form.columns; add what is missing, or rename the file's columns"
        )
    return columns


def _read_csv(path: Path, form: DatasetForm, columns: tuple[str, ...]) -> _OwnArrays:
    rows, numbers = list[list[float]](), list[int]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = _check_header([name.strip() for name in next(lines, [])], path)
            if not header:
                raise _no_samples(path)
            chosen = _choose_columns(header, path, form, columns)
            place_of = {name: at for at, name in enumerate(header)}
            places = [(name, place_of[name]) for name in chosen.names]
            for row in lines:
                if len(row) > 1 or any(word.strip() for word in row):
                    rows.append(_parse_row(row, len(header), places, f"{path}:{lines.line_num}"))
                    numbers.append(lines.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataUnavailableError(f"{path}: cannot be read as CSV: {error}; save it as UTF-8 text") from None
    if not rows:
        raise _no_samples(path)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(chosen.names))
    return chosen.stack(dict(zip(chosen.names, table.T, strict=True)), form, numbers)


def _check_header(header: list[str], path: Path) -> list[str]:
    if len(set(header)) != len(header):
        raise DataUnavailableError(f"{path}:1: has two columns of the same name; rename one")
    other = [mark for mark in (";", "\t", "|") if len(header) == 1 and mark in header[0]]
    if other:
        raise DataUnavailableError(f"{path}:1: its columns are separated by {other[0]!r}; save it with commas")
    return header


def _no_samples(path: Path) -> DataUnavailableError:
    return DataUnavailableError(f"{path}: has no samples; write a header, and a line for each sample below it")


def _parse_row(row: Sequence[str], width: int, columns: Sequence[tuple[str, int]], place: str) -> list[float]:
    """Return the numbers of the columns that are given with name and position."""
    if len(row) != width:
        raise DataUnavailableError(f"{place}: has {len(row)} columns, the header {width}; repair the line")
    return [_parse_number(row[at], name, place) for name, at in columns]


def _parse_number(word: str, name: str, place: str) -> float:
    try:
        value = float(word) if _NUMBER.fullmatch(word) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataUnavailableError(
            f"{place}: '{word[:40]}' in the column '{name[:40]}' is not a finite number; repair it"
        )
    return value


def _read_parquet(path: Path, form: DatasetForm, columns: tuple[str, ...]) -> _OwnArrays:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise DataUnavailableError(
            f"{path}: Parquet files need pyarrow; {how_to_install('parquet')}, or convert the file to CSV"
        ) from None
    try:
        table = parquet.read_table(path)
        chosen = _choose_columns(table.column_names, path, form, columns)
        arrays = {name: np.asarray(table.column(name)) for name in chosen.names}
    except (ArrowException, OSError) as error:
        raise DataUnavailableError(f"{path}: cannot be read as Parquet: {error}; save it again") from None
    _check_types(arrays, path)
    return chosen.stack(arrays, form)


def _read_npz(path: Path, _: DatasetForm, _columns: tuple[str, ...]) -> _OwnArrays:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return _OwnArrays(arrays["x"], arrays["y"])
    except Exception as error:
        # zipfile, zlib and numpy raise many kinds of errors for a file that is damaged or of another kind.
        raise DataUnavailableError(
            f"{path}: must hold the arrays x and y ({type(error).__name__}: {error}); save them with numpy.savez"
        ) from None


def _read_safetensors(path: Path, _: DatasetForm, _columns: tuple[str, ...]) -> _OwnArrays:
    try:
        arrays = FileArrays(path)
        return _OwnArrays(arrays["x"], arrays["y"])
    except (PayloadError, OSError, KeyError) as error:
        raise DataUnavailableError(f"{path}: must hold the arrays x and y ({error}); save it again") from None


def _call_factory(source: str, allowed: Collection[str]) -> _OwnArrays:
    factory = resolve(source, {}, "own samples", allowed)
    try:
        x, y = factory()
        return _OwnArrays(np.asarray(x), np.asarray(y))
    except FedquiltError:
        raise
    except USER_ERRORS as error:
        if isinstance(error, SystemExit):
            raise DataUnavailableError(
                f"{source}: the function {describe_sys_exit(error, package_of(source))}"
            ) from error
        raise DataUnavailableError(
            f"{source}: gives no arrays (x, y): {describe_error(error)}; correct the function"
        ) from error


_READERS: Final[dict[str, Callable[[Path, DatasetForm, tuple[str, ...]], _OwnArrays]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz, ".safetensors": _read_safetensors,
}  # fmt: skip
