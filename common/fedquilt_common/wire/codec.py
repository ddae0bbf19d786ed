"""Arrays as bytes: safetensors containers with numbers in fp32, fp16 or bf16; pickle is never used.

Files are read one tensor or one block of a tensor at a time.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.files.digests import DigestKind, new_hash
from fedquilt_common.files.durable import start_writing, write_all
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.container_header import (
    DTYPES,
    LENGTH_BYTES,
    ArrayPlace,
    header_size,
    pack_header,
    read_header,
)
from fedquilt_common.wire.narrowing import from_bf16, narrow

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
    return narrow(name, x, wire_dtype(x.dtype, precision))


def from_wire(x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert received numbers of the safetensors ``dtype``: fp16 and bf16 become float32, others stay as they are."""
    if dtype == "BF16":
        return from_bf16(x)
    return x.astype(np.float32) if dtype == "F16" else x


def read_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype of numbers of the safetensors ``dtype`` after ``from_wire``."""
    return np.dtype(np.float32) if dtype in ("F16", "BF16") else DTYPES[dtype]


ONE_PIECE: Final = 1 << 20
"""Bytes of a container up to which it is written and read in one piece."""
BLOCK: Final = 1 << 16
"""Numbers read or averaged at a time: 512 KiB as fp64, so a few such arrays stay in a processor's cache."""


def write_arrays(
    path: Path,
    arrays: Arrays,
    precision: Precision | None = "fp32",
    metadata: Mapping[str, str] | None = None,
    *,
    digest: DigestKind = "xxh3",
    labels: bool = False,
    durable: bool = False,
    spare: Callable[[int], Path | None] = lambda _size: None,
) -> Blob:
    """Write a container; a large one directly from the arrays' memory (no copy in fp32).

    Args:
        path: the file to write; its folder is created. An existing file is overwritten in place, so no reader and no
            mapped array may use it.
        arrays: arrays of any shape by name.
        precision: number format of floats on the wire; None: that of the arrays.
        metadata: texts to store in the container's header.
        digest: which digest of the file is returned.
        labels: the arrays are soft labels, whose container's head travels apart from the numbers.
        durable: the caller syncs the file next, so the disk begins to write a large one at once.
        spare: returns a file to write over, for a number of bytes; it is moved to ``path``.

    Returns:
        The file with its digest.

    Raises:
        PayloadError: a dtype cannot be sent, or a number does not fit the precision.
        OSError: the file cannot be written.
    """
    header, numbers = _describe(arrays, precision, metadata or {})
    size = len(header) + sum(map(len, numbers))
    path.parent.mkdir(parents=True, exist_ok=True)
    if (over := spare(size)) is not None:
        over.replace(path)
    found = _write_pieces(path, _pieces(header, numbers, size), size, digest, durable=durable)
    return Blob(path, found, size, len(header) if labels else 0)


def pack_arrays(arrays: Arrays, precision: Precision) -> PackedArrays:
    """Return arrays as those read them who get their container; see ``write_arrays``. It is made in memory.

    Raises:
        PayloadError: a dtype cannot be sent, or a number does not fit the precision.
    """
    header, numbers = _describe(arrays, precision, {})
    return BytesArrays(b"".join((header, *numbers)))


def _describe(
    arrays: Arrays, precision: Precision | None, metadata: Mapping[str, str]
) -> tuple[bytes, list[memoryview]]:
    """Return the bytes of a container before its numbers, and the numbers' own bytes in their order."""
    if sys.byteorder != "little":  # pragma: no cover - no supported board is big endian
        raise PayloadError("this machine is big-endian; fedquilt runs on little-endian machines only")
    dtypes = {name: wire_dtype(x.dtype, precision) for name, x in arrays.items()}
    header, names = pack_header({name: (dtypes[name], x.shape) for name, x in arrays.items()}, metadata)
    numbers = (narrow(name, arrays[name], dtypes[name]) for name in names)
    return header, [x.reshape(-1).view(np.uint8).data for x in numbers]


def _pieces(header: bytes, numbers: Iterable[memoryview], size: int) -> Iterator[bytes | memoryview]:
    """Yield a small container whole, and a large one in pieces that stay in a processor's cache."""
    if size <= ONE_PIECE:
        yield b"".join((header, *numbers))
        return
    yield header
    for array in numbers:
        yield from (array[at : at + ONE_PIECE] for at in range(0, len(array), ONE_PIECE))


def _write_pieces(
    path: Path, pieces: Iterable[bytes | memoryview], size: int, kind: DigestKind, *, durable: bool
) -> str:
    """Write a file, and return its digest in hex.

    One that exists keeps its blocks on the disk: to free and to allocate them takes longer.
    """
    found, unwritten = new_hash(kind), 0
    try:
        with open(path, "wb", buffering=0, opener=_open_as_it_is) as file:
            for piece in pieces:
                found.update(piece)
                write_all(file, piece)
                if durable:
                    unwritten = start_writing(file.fileno(), unwritten + len(piece))
            if os.fstat(file.fileno()).st_size != size:
                file.truncate()
    except OSError as error:  # such as a full disk, which names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
    return found.hexdigest()


def _open_as_it_is(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


class PackedArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a container, read on access; fp16 and bf16 arrays are float32 copies.

    Attributes:
        metadata: texts in the container's header.
    """

    metadata: dict[str, str]
    _entries: Mapping[str, ArrayPlace]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> NDArray[Any]:
        place = self._entries[name]
        kind = DTYPES[place.dtype]
        numbers = self._view(kind, place.start, place.size) if place.size else np.empty(0, kind)
        return from_wire(numbers, place.dtype).reshape(place.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # the method of Mapping would read the array

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one array, without reading its data."""
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """Safetensors dtype of one array on the wire."""
        return self._entries[name].dtype

    @cached_property
    def layout(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Name, safetensors dtype and shape of each array, in the order of their bytes."""
        return tuple((name, place.dtype, place.shape) for name, place in self._entries.items())

    def blocks(self, *names: str) -> Iterator[NDArray[Any]]:
        """Yield the numbers in blocks of one dtype, each of at most ``BLOCK`` numbers; fp16 and bf16 as float32.

        Args:
            names: of one array, or of several that follow one another; none stands for all.
        """
        chosen = {name: self._entries[name] for name in names} if names else self._entries
        for _, group in groupby(chosen.items(), key=lambda entry: entry[1].dtype):
            places = dict(group)
            first, size = next(iter(places)), sum(place.size for place in places.values())
            for start in range(0, size, BLOCK):
                yield self.block(first, start, min(start + BLOCK, size))

    def block(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop`` of the flattened array, shape (stop - start,); fp16 and bf16 as float32.

        ``stop`` may lie behind the array's end if arrays of the same dtype follow it in ``layout``.
        """
        place = self._entries[name]
        kind = DTYPES[place.dtype]
        return from_wire(self._read(kind, place.start + start * kind.itemsize, stop - start), place.dtype)

    @abstractmethod
    def _view(self, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
        """Return ``count`` numbers, 1 or more, from byte ``at`` of the container, without a copy."""

    @abstractmethod
    def _read(self, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
        """Return ``count`` numbers from byte ``at`` of the container."""


class FileArrays(PackedArrays):
    """The arrays of a container in a file. Whole arrays are memory maps; blocks are copies.

    Args:
        path: the file.
        start: byte of the file at which the container begins.
        size: bytes of the container; None: it ends with the file.
        content: the container, if it has been read: its header is taken from there, and the bytes are not kept.

    Raises:
        PayloadError: the bytes are not a valid safetensors container of dtypes that fedquilt sends.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, start: int = 0, size: int | None = None, content: bytes | None = None) -> None:
        self.path = path
        self._start = start
        if content is not None:
            self.metadata, self._entries = _header_of(content)
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size - start if size is None else size
            file.seek(start)
            header = file.read(header_size(file.read(LENGTH_BYTES), size))
        self.metadata, self._entries = read_header(header, size)

    def _view(self, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
        first = self._start + at
        page = first - first % mmap.ALLOCATIONGRANULARITY
        length = first - page + count * kind.itemsize
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=page)
        return np.frombuffer(mapped, kind, count, first - page)

    def _read(self, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
        return read_numbers(self.path, kind, self._start + at, count)


def read_numbers(path: Path, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    """Read ``count`` numbers from byte ``at`` of a file; an array of shape (count,).

    Raises:
        OSError: the file cannot be read, or is too short.
    """
    numbers = np.empty(count, kind)
    left = numbers.view(np.uint8).data
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # Path.open would make twice as many system calls
    try:
        while left:
            if not (read := os.preadv(descriptor, [left], at)):
                raise OSError(errno.EIO, "the file has become shorter")
            left, at = left[read:], at + read
    except OSError as error:  # such as a broken disk, which names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)
    return numbers


class BytesArrays(PackedArrays):
    """The arrays of a container in memory; all are views of it.

    Args:
        content: the container.

    Raises:
        PayloadError: the bytes are not a valid safetensors container of dtypes that fedquilt sends.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.metadata, self._entries = _header_of(content)

    def _view(self, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
        return np.frombuffer(self._content, kind, count, at)

    def _read(self, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
        return self._view(kind, at, count) if count else np.empty(0, kind)


def _header_of(content: bytes) -> tuple[dict[str, str], Mapping[str, ArrayPlace]]:
    size = header_size(content[:LENGTH_BYTES], len(content))
    return read_header(content[LENGTH_BYTES : LENGTH_BYTES + size], len(content))


def open_arrays(path: Path) -> PackedArrays:
    """Return the arrays of a container in a file; those of a small one are read at once.

    Raises:
        PayloadError: the bytes are not a valid safetensors container of dtypes that fedquilt sends.
        OSError: the file cannot be read.
    """
    return BytesArrays(path.read_bytes()) if path.stat().st_size <= ONE_PIECE else FileArrays(path)


def block(arrays: Arrays, name: str, start: int, stop: int) -> NDArray[Any]:
    """Elements ``start`` to ``stop`` of a flattened array in memory or on disk, shape (stop - start,)."""
    if isinstance(arrays, PackedArrays):
        return arrays.block(name, start, stop)
    return arrays[name].reshape(-1)[start:stop]
