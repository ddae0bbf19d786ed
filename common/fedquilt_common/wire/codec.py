"""Arrays <-> bytes: safetensors containers, numbers in fp32, fp16 or bf16. Nothing is ever unpickled.

Files are read through memory maps, one tensor or one block of it at a time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob, digest_file

MAX_HEADER: Final = 16 * 1024 * 1024
MAX_DIMENSIONS: Final = 32
MAX_ELEMENTS: Final = 1 << 48
"""Also where one dimension is 0 and the others could be anything."""
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
_WIRE_FLOAT: Final[dict[Precision, str]] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


def wire_dtype(dtype: np.dtype[Any], precision: Precision) -> str:
    """The safetensors name of the dtype that an array of ``dtype`` has on the wire; only floats are narrowed."""
    if dtype.kind == "f":
        return _WIRE_FLOAT[precision]
    for name, known in DTYPES.items():
        if known == dtype and name != "BF16":
            return name
    raise PayloadError(f"arrays of dtype {dtype} cannot be sent")


def to_bf16(x: NDArray[Any]) -> NDArray[np.uint16]:
    """fp32 -> the bits of bf16, rounded to nearest even; NaN stays NaN, infinity stays infinity."""
    bits = np.asarray(x, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    bits16: NDArray[np.uint16] = np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return bits16


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The bits of bf16 -> fp32, exactly."""
    widened: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def _narrow(name: str, x: NDArray[Any], dtype: str) -> NDArray[Any]:
    kind = DTYPES["F32" if dtype == "BF16" else dtype]
    with np.errstate(over="ignore"):
        narrowed = np.asarray(x, dtype=kind, order="C")
    if kind.itemsize < x.dtype.itemsize and not np.array_equal(np.isfinite(narrowed), np.isfinite(x)):
        advice = "fp16's 65504: send it as fp32 or bf16" if dtype == "F16" else "fp32's 3.4e38"
        raise PayloadError(f"array {name!r} holds numbers beyond {advice}")
    return to_bf16(narrowed) if dtype == "BF16" else narrowed


def wire_dtype_of(dtype: str, precision: Precision) -> tuple[str, np.dtype[Any]]:
    """(safetensors name, numpy dtype of the bytes) on the wire for an array of ``dtype``."""
    name = wire_dtype(np.dtype(dtype), precision)
    return name, DTYPES[name]


def as_wire(name: str, x: NDArray[Any], precision: Precision) -> NDArray[Any]:
    """The numbers of array ``name`` as they are sent, in C order; raises PayloadError when one does not fit."""
    return _narrow(name, x, wire_dtype(x.dtype, precision))


def from_wire(x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Received numbers of the safetensors ``dtype``; halves are widened to fp32."""
    if dtype == "BF16":
        return from_bf16(x)
    return x.astype(np.float32) if dtype == "F16" else x


_SPEC_DTYPE: Final = {
    "F32": "float32",
    "F64": "float64",
    "F16": "float16",
    "BF16": "bfloat16",
    "BOOL": "bool",
}


def _spec_dtype(dtype: str) -> str:
    return _SPEC_DTYPE.get(dtype, dtype.lower().replace("i", "int").replace("u", "uint"))


def write_arrays(
    path: Path,
    arrays: Arrays,
    precision: Precision = "fp32",
    metadata: Mapping[str, str] | None = None,
    *,
    labels: bool = False,
) -> Blob:
    """Write a container straight from the arrays' memory (no copy in fp32) and return its digest.

    Of soft ``labels`` the container's head is to travel apart from the numbers.

    Raises:
        PayloadError: when a dtype cannot be sent, or a number does not fit the precision.
    """
    if sys.byteorder != "little":  # pragma: no cover - no supported board is big endian
        raise PayloadError("fedquilt runs on little-endian machines only")
    kept, specs = [], {}
    for name, x in arrays.items():
        dtype = wire_dtype(x.dtype, precision)
        wired = _narrow(name, x, dtype)
        kept.append(wired)  # the specs hold bare pointers: the arrays must outlive the call
        specs[name] = safetensors.TensorSpec(
            dtype=_spec_dtype(dtype), shape=list(x.shape), data_ptr=wired.ctypes.data, data_len=wired.nbytes
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.serialize_file(specs, str(path), dict(metadata) if metadata else None)
    return Blob(path, digest_file(path), path.stat().st_size, _data_start(path) if labels else 0)


class FileArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a container on disk, read when asked for: fp32 and integers as memory maps, halves as fp32 copies.

    Raises:
        PayloadError: when the file is not a sound safetensors container of dtypes that fedquilt sends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = _data_start(path)
        try:
            with safetensors.safe_open(str(path), framework="numpy") as file:
                self.metadata: dict[str, str] = dict(file.metadata() or {})
                layout = [(name, file.get_slice(name)) for name in file.offset_keys()]
                self._entries = dict(_entries(layout))
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise PayloadError(f"not a safetensors container: {error}"[:300]) from None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> NDArray[Any]:
        _, shape, _ = self._entries[name]
        return self.block(name, 0, _size(shape)).reshape(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one array without touching its data."""
        return self._entries[name][1]

    def dtype(self, name: str) -> str:
        """Safetensors dtype of one array as it is on the wire."""
        return self._entries[name][0]

    def block(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop`` of the flattened array; halves are widened to fp32."""
        dtype, _, offset = self._entries[name]
        kind = DTYPES[dtype]
        if start == stop:
            return np.empty(0, np.float32 if dtype in ("F16", "BF16") else kind)
        at = self._start + offset + start * kind.itemsize
        raw: NDArray[Any] = np.memmap(self.path, dtype=kind, mode="r", offset=at, shape=(stop - start,)).view(
            np.ndarray
        )
        return from_wire(raw, dtype)


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _data_start(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > min(MAX_HEADER, path.stat().st_size - 8):
        raise PayloadError("not a safetensors container: its header is longer than it may be")
    return 8 + length


def _entries(layout: list[tuple[str, Any]]) -> Iterator[tuple[str, tuple[str, tuple[int, ...], int]]]:
    # the library has checked that the tensors lie one behind the other without gap or overlap
    offset = 0
    for name, info in layout:
        dtype, shape = info.get_dtype(), tuple(info.get_shape())
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype} of {name[:80]!r} is not one that fedquilt sends")
        if len(shape) > MAX_DIMENSIONS or math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
            raise ValueError(f"shape of {name[:80]!r} is not one that an array can have")
        yield name, (dtype, shape, offset)
        offset += _size(shape) * DTYPES[dtype].itemsize


BLOCK: Final = 1 << 18
"""Numbers read or averaged at a time: 2 MiB as fp64, which stays in a processor's cache."""


def block(arrays: Arrays, name: str, start: int, stop: int) -> NDArray[Any]:
    """Elements ``start`` to ``stop`` of a flattened array, wherever it lies."""
    if isinstance(arrays, FileArrays):
        return arrays.block(name, start, stop)
    return arrays[name].reshape(-1)[start:stop]
