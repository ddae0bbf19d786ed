"""Read samples that a board has of its own: CSV, Parquet, NPZ or safetensors files, or a function of its owner.

A table has a header, a column ``label`` (or ``label_0``, ``label_1`` and so on), and the features of a sample in its
other columns, in the order of the flattened sample. NPZ and safetensors files hold the arrays ``x`` and ``y``.
"""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.shard_files import DatasetForm, check_form
from fedquilt_common.errors import DataUnavailableError, PayloadError
from fedquilt_common.types import Examples
from fedquilt_common.user_imports import resolve
from fedquilt_common.wire.codec import FileArrays

_LABEL: Final = re.compile(r"label(_\d+)?")
_OwnArrays = tuple[NDArray[Any], NDArray[Any]]
"""x and y."""


def read_own_samples(source: str, form: DatasetForm, allowed: Collection[str] = ()) -> Examples:
    """Read the samples of a client, and check them against the experiment's form.

    Args:
        source: a file that ends in ``.csv``, ``.parquet``, ``.npz`` or ``.safetensors``; or ``package:factory``, a
            function without arguments that returns ``(x, y)``.
        form: what the samples must look like.
        allowed: packages from which a factory may come.

    Raises:
        DataUnavailableError: the file is missing or damaged, or its samples have another form.
        ForbiddenImportError: the factory's package is not allowed.
    """
    path = Path(source)
    reader = _READERS.get(path.suffix)
    if reader is not None:
        if not path.is_file():
            raise DataUnavailableError(f"{path}: there is no such file; correct the agent's --data")
        x, y = reader(path, form)
    elif ":" in source:
        x, y = _call_factory(source, allowed)
    else:
        raise DataUnavailableError(
            f"{source}: is neither package:factory nor a file that ends in {', '.join(_READERS)}; convert it"
        )
    return _check(x, y, form, source)


def _check(x: NDArray[Any], y: NDArray[Any], form: DatasetForm, source: str) -> Examples:
    if len(x) != len(y) or not len(x):
        raise DataUnavailableError(f"{source}: has {len(x)} samples and {len(y)} labels; each sample needs one label")
    for name, array, dtype in (("x", x, form.dtype), ("y", y, form.label_dtype)):
        if array.dtype.kind not in "biuf":
            raise DataUnavailableError(f"{source}: {name} holds {array.dtype}, not numbers; convert it")
        wrong = np.flatnonzero(~np.isfinite(array.astype(np.float64)).reshape(len(array), -1).all(axis=1))
        if len(wrong):
            raise DataUnavailableError(f"{source}: {name} of sample {wrong[0] + 1} is not finite; repair or remove it")
        if np.dtype(dtype).kind in "iu" and not np.array_equal(array, np.rint(array)):
            raise DataUnavailableError(
                f"{source}: {name} must hold whole numbers, because the experiment needs {dtype}; convert them"
            )
    if y.shape[1:] != form.label_shape and y.size == len(y) * prod(form.label_shape):
        y = y.reshape(len(y), *form.label_shape)
    samples = Examples(x.astype(form.dtype, copy=False), y.astype(form.label_dtype, copy=False))
    check_form(samples, form, source)
    return samples


def _from_columns(columns: Mapping[str, NDArray[Any]], path: Path, form: DatasetForm) -> _OwnArrays:
    labels = [name for name in columns if _LABEL.fullmatch(name)]
    features = [name for name in columns if name not in labels]
    targets = max(1, prod(form.label_shape))
    if len(labels) != targets or len(features) != prod(form.shape):
        raise DataUnavailableError(
            f"{path}: has {len(features)} feature columns and {len(labels)} label columns, but the experiment needs "
            f"{prod(form.shape)} features (samples of shape {list(form.shape)}) and {targets} labels; name a label "
            "column 'label', and several 'label_0', 'label_1' and so on"
        )
    x = np.stack([columns[name] for name in features], axis=1).reshape(-1, *form.shape)
    y = np.stack([columns[name] for name in labels], axis=1)
    return x, y if form.label_shape else y[:, 0]


def _read_csv(path: Path, form: DatasetForm) -> _OwnArrays:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = [name.strip() for name in next(lines, [])]
            rows = [_parse_row(row, len(header), f"{path}:{lines.line_num}") for row in lines if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataUnavailableError(f"{path}: cannot be read as CSV: {error}; save it as UTF-8 text") from None
    if len(set(header)) != len(header):
        raise DataUnavailableError(f"{path}:1: has two columns of the same name; rename one")
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(header))
    return _from_columns(dict(zip(header, table.T, strict=True)), path, form)


def _parse_row(row: Sequence[str], columns: int, place: str) -> list[float]:
    if len(row) != columns:
        raise DataUnavailableError(f"{place}: has {len(row)} columns, the header {columns}; repair the line")
    try:
        return [float(word) for word in row]
    except ValueError as error:
        raise DataUnavailableError(f"{place}: {error}; write numbers only") from None


def _read_parquet(path: Path, form: DatasetForm) -> _OwnArrays:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise DataUnavailableError(
            f"{path}: Parquet files need pyarrow; run pip install 'fedquilt[parquet]', or convert the file to CSV"
        ) from None
    try:
        table = parquet.read_table(path)
        columns = {name: np.asarray(table.column(name)) for name in table.column_names}
    except (ArrowException, OSError) as error:
        raise DataUnavailableError(f"{path}: cannot be read as Parquet: {error}; save it again") from None
    return _from_columns(columns, path, form)


def _read_npz(path: Path, _: DatasetForm) -> _OwnArrays:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataUnavailableError(
            f"{path}: must hold the arrays x and y ({error}); save them with numpy.savez"
        ) from None


def _read_safetensors(path: Path, _: DatasetForm) -> _OwnArrays:
    try:
        arrays = FileArrays(path)
        return arrays["x"], arrays["y"]
    except (PayloadError, OSError, KeyError) as error:
        raise DataUnavailableError(f"{path}: must hold the arrays x and y ({error}); save it again") from None


def _call_factory(source: str, allowed: Collection[str]) -> _OwnArrays:
    x, y = resolve(source, {}, "own samples", allowed)()
    return np.asarray(x), np.asarray(y)


_READERS: Final[dict[str, Callable[[Path, DatasetForm], _OwnArrays]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz, ".safetensors": _read_safetensors,
}  # fmt: skip
