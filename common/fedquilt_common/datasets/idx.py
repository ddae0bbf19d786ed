"""Read images and labels in the IDX format of MNIST and Fashion-MNIST.

IDX is big-endian: a magic number with the type (8: unsigned byte) and the number of dimensions, then the dimensions,
then the values.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import WHITE, check_end, dataset_folder, find_file, open_packed, read_exactly
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import as_samples
from fedquilt_common.types import Dataset, Examples

CLASSES = 10
SIDE = 28
_MOST = 1_000_000


def load_idx(folder: Path | None, name: str) -> Dataset:
    """Load grey images of 28 x 28 pixels in ten classes from four IDX files.

    Args:
        folder: contains a folder ``name``.
        name: of the data set.

    Returns:
        ``x`` of shape (n, 1, 28, 28) from 0 to 1, stored as bytes; ``y`` int64 of shape (n,) from 0 to 9.

    Raises:
        DataUnavailableError: a file is missing or damaged.
    """
    place = dataset_folder(folder, name)
    return Dataset(name, _read_part(place, "train"), _read_part(place, "t10k"), CLASSES)


def _read_part(place: Path, prefix: str) -> Examples:
    images, labels = find_file(place, f"{prefix}-images-idx3-ubyte"), find_file(place, f"{prefix}-labels-idx1-ubyte")
    x, y = _read_images(images), _read_labels(labels)
    if len(x) != len(y):
        raise DataUnavailableError(
            f"{images}: has {len(x)} images, but {labels.name} has {len(y)} labels; fetch both files again"
        )
    return Examples(x, y)


def _read_images(path: Path) -> NDArray[Any]:
    with open_packed(path) as stream:
        count = _read_header(stream, path, (SIDE, SIDE))
        pixels = np.frombuffer(read_exactly(stream, count * SIDE * SIDE, path), dtype=np.uint8)
        check_end(stream, path)
    return as_samples(pixels.reshape(count, 1, SIDE, SIDE), WHITE)


def _read_labels(path: Path) -> NDArray[np.int64]:
    with open_packed(path) as stream:
        count = _read_header(stream, path, ())
        y = np.frombuffer(read_exactly(stream, count, path), dtype=np.uint8).astype(np.int64)
        check_end(stream, path)
    if y.max() >= CLASSES:
        raise DataUnavailableError(f"{path}: has the label {y.max()}, above {CLASSES - 1}; fetch the file again")
    return y


def _read_header(stream: IO[bytes], path: Path, sample: tuple[int, ...]) -> int:
    """Read the number of samples, and check the sizes before memory is allocated for them."""
    expected = 0x0800 + 1 + len(sample)
    size = 4 * (2 + len(sample))
    magic, count, *shape = struct.unpack(f">{size // 4}I", read_exactly(stream, size, path))
    if magic != expected or tuple(shape) != sample:
        raise DataUnavailableError(
            f"{path}: starts with magic {magic:#x} and sizes {shape} instead of {expected:#x} and {list(sample)}; "
            f"it is not the published file of this name; fetch it again"
        )
    if not 1 <= count <= _MOST:
        raise DataUnavailableError(
            f"{path}: announces {count} samples, which is not from 1 to {_MOST}; fetch the file again"
        )
    return int(count)
