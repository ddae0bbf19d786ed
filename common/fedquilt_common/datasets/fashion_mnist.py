"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes in ten classes (Xiao, Rasul and Vollgraf, 2017).

Reads the authors' four IDX files as they publish them, in ``<FEDQUILT_DATA>/fashion-mnist``. IDX:
big-endian, the magic number says the type (8: unsigned byte) and the number of dimensions, then the
dimensions, then the values.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import check_end, dataset_folder, find, open_packed, read_exactly
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME = "fashion-mnist"
CLASSES = 10
SIDE = 28
_MOST = 1_000_000
# Unpacked and scaled this many at a time: the raw bytes are never all in memory beside the floats.
_BLOCK = 1000
_WHITE = np.float32(255)


def load(folder: Path | None = None) -> Dataset:
    """``x`` float32 of shape (n, 1, 28, 28) from 0 to 1, ``y`` int64. Raises DataUnavailableError."""
    place = dataset_folder(folder, NAME)
    return Dataset(NAME, _part(place, "train"), _part(place, "t10k"), CLASSES)


def _part(place: Path, prefix: str) -> Examples:
    images, labels = find(place, f"{prefix}-images-idx3-ubyte"), find(place, f"{prefix}-labels-idx1-ubyte")
    x, y = _images(images), _labels(labels)
    if len(x) != len(y):
        raise DataUnavailableError(
            f"{images}: has {len(x)} images where {labels.name} has {len(y)} labels; fetch both files again"
        )
    return Examples(x, y)


def _images(path: Path) -> NDArray[np.float32]:
    with open_packed(path) as stream:
        count = _header(stream, path, (SIDE, SIDE))
        x = np.empty((count, 1, SIDE, SIDE), dtype=np.float32)
        for start in range(0, count, _BLOCK):
            block = x[start : start + _BLOCK]
            pixels = np.frombuffer(read_exactly(stream, block.size, path), dtype=np.uint8)
            np.divide(pixels.reshape(block.shape), _WHITE, out=block)
        check_end(stream, path)
    return x


def _labels(path: Path) -> NDArray[np.int64]:
    with open_packed(path) as stream:
        count = _header(stream, path, ())
        y = np.frombuffer(read_exactly(stream, count, path), dtype=np.uint8).astype(np.int64)
        check_end(stream, path)
    if y.max() >= CLASSES:
        raise DataUnavailableError(f"{path}: has the label {y.max()}, above {CLASSES - 1}; fetch the file again")
    return y


def _header(stream: IO[bytes], path: Path, sample: tuple[int, ...]) -> int:
    """The number of samples. The sizes must be right before memory is set aside for them."""
    expected = 0x0800 + 1 + len(sample)
    size = 4 * (2 + len(sample))
    magic, count, *shape = struct.unpack(f">{size // 4}I", read_exactly(stream, size, path))
    if magic != expected or tuple(shape) != sample:
        raise DataUnavailableError(
            f"{path}: starts with magic {magic:#x} and sizes {shape} where {expected:#x} and {list(sample)} "
            f"should be; it is not the file of {NAME} that its name says; fetch it again"
        )
    if not 1 <= count <= _MOST:
        raise DataUnavailableError(f"{path}: announces {count} samples; fetch the file again")
    return int(count)
