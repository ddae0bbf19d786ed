"""Arrays as bytes: safetensors containers with numbers in fp32, fp16 or bf16; pickle is never used.

Files are read through memory maps, one tensor or one block of a tensor at a time.
"""

from __future__ import annotations

import errno
import math
import os
import re
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
"""Most bytes of a container's header."""
MAX_DIMENSIONS: Final = 32
MAX_ELEMENTS: Final = 1 << 48
"""Most elements of an array; a dimension of 0 counts as 1, so that the other dimensions have a limit too."""
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
_WIRE_FLOAT: Final[dict[Precision, str]] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


def wire_dtype(dtype: np.dtype[Any], precision: Precision | None) -> str:
    """Safetensors name of the dtype on the wire for an array of ``dtype``; only floats are narrowed.

    Raises:
        PayloadError: arrays of this dtype cannot be sent.
    """
    if dtype.kind == "f" and precision is not None:
        return _WIRE_FLOAT[precision]
    for name, sendable in DTYPES.items():
        if sendable == dtype and name != "BF16":
            return name
    raise PayloadError(
        f"arrays of dtype {dtype} cannot be sent: use floats, signed integers up to 64 bits, uint8 or bool"
    )


def to_bf16(x: NDArray[Any]) -> NDArray[np.uint16]:
    """Round to bf16, to nearest even; NaN stays NaN, infinity stays infinity.

    Args:
        x: numbers of any shape, read as float32.

    Returns:
        The bits of bf16, uint16 of the same shape.
    """
    bits = np.asarray(x, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    bits16: NDArray[np.uint16] = np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return bits16


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen the bits of bf16 (uint16) to float32 of the same shape, exactly."""
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


def wire_format(dtype: str, precision: Precision) -> tuple[str, np.dtype[Any]]:
    """Safetensors name and numpy dtype on the wire for an array of the numpy dtype ``dtype``.

    Raises:
        PayloadError: arrays of this dtype cannot be sent.
    """
    name = wire_dtype(np.dtype(dtype), precision)
    return name, DTYPES[name]


def to_wire(name: str, x: NDArray[Any], precision: Precision) -> NDArray[Any]:
    """Convert an array to the numbers that are sent.

    Args:
        name: the array's name, for the message.
        x: any shape, a dtype that can be sent.
        precision: number format of floats on the wire.

    Returns:
        The same shape in C order, with the dtype of ``wire_format``; bf16 as uint16.

    Raises:
        PayloadError: the dtype cannot be sent, or a finite number becomes infinite in this precision.
    """
    return _narrow(name, x, wire_dtype(x.dtype, precision))


def from_wire(x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert received numbers of the safetensors ``dtype``: fp16 and bf16 become float32, others stay as they are."""
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
    precision: Precision | None = "fp32",
    metadata: Mapping[str, str] | None = None,
    *,
    labels: bool = False,
) -> Blob:
    """Write a container directly from the arrays' memory (no copy in fp32).

    Args:
        path: the file to write; its folder is created.
        arrays: arrays of any shape by name.
        precision: number format of floats on the wire; None: that of the arrays.
        metadata: texts to store in the container's header.
        labels: the arrays are soft labels, whose container's head travels apart from the numbers.

    Returns:
        The file with its digest.

    Raises:
        PayloadError: a dtype cannot be sent, or a number does not fit the precision.
        OSError: the file cannot be written.
    """
    if sys.byteorder != "little":  # pragma: no cover - no supported board is big endian
        raise PayloadError("this machine is big-endian; fedquilt runs on little-endian machines only")
    kept, specs = [], {}
    for name, x in arrays.items():
        dtype = wire_dtype(x.dtype, precision)
        numbers = _narrow(name, x, dtype)
        kept.append(numbers)  # the specs hold bare pointers: the arrays must live until the call returns
        specs[name] = safetensors.TensorSpec(
            dtype=_spec_dtype(dtype), shape=list(x.shape), data_ptr=numbers.ctypes.data, data_len=numbers.nbytes
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        safetensors.serialize_file(specs, str(path), dict(metadata) if metadata else None)
    except safetensors.SafetensorError as error:
        raise _disk_error(error, path) from None
    return Blob(path, digest_file(path), path.stat().st_size, _data_start(path) if labels else 0)


def _disk_error(error: safetensors.SafetensorError, path: Path) -> OSError:
    """Return the disk's error that safetensors reports as text, such as a full disk."""
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code), str(path))


class FileArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a container on disk, read on access.

    float32 and integer arrays are memory maps; fp16 and bf16 arrays are float32 copies.

    Args:
        path: the container's file.

    Raises:
        PayloadError: the file is not a valid safetensors container of dtypes that fedquilt sends.
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
        """Shape of one array, without reading its data."""
        return self._entries[name][1]

    def dtype(self, name: str) -> str:
        """Safetensors dtype of one array on the wire."""
        return self._entries[name][0]

    def block(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop`` of the flattened array, shape (stop - start,); fp16 and bf16 as float32."""
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
        raise PayloadError("not a safetensors container: its header is longer than the limit or the file")
    return 8 + length


def _entries(layout: list[tuple[str, Any]]) -> Iterator[tuple[str, tuple[str, tuple[int, ...], int]]]:
    # the library has verified that the tensors follow one another without gap or overlap
    offset = 0
    for name, info in layout:
        dtype, shape = info.get_dtype(), tuple(info.get_shape())
        if dtype not in DTYPES:
            raise ValueError(f"fedquilt does not send the dtype {dtype} of {name[:80]!r}")
        if len(shape) > MAX_DIMENSIONS or math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
            raise ValueError(f"the shape of {name[:80]!r} is beyond what an array can have")
        yield name, (dtype, shape, offset)
        offset += _size(shape) * DTYPES[dtype].itemsize


BLOCK: Final = 1 << 18
"""Numbers read or averaged at a time: 2 MiB as fp64, which stays in a processor's cache."""


def block(arrays: Arrays, name: str, start: int, stop: int) -> NDArray[Any]:
    """Elements ``start`` to ``stop`` of a flattened array in memory or on disk, shape (stop - start,)."""
    if isinstance(arrays, FileArrays):
        return arrays.block(name, start, stop)
    return arrays[name].reshape(-1)[start:stop]
