"""Small data sets of random numbers, in files of the format in which their authors publish them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE = 28
"""Pixels of an image of Fashion-MNIST, each way."""


def idx_files(train: int, test: int, seed: int = 0) -> dict[str, bytes]:
    """Return Fashion-MNIST's four files by name, not packed; sample i has the label i modulo 10."""
    rng = np.random.default_rng(seed)
    files = {}
    for prefix, n in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, n * SIDE * SIDE, dtype=np.uint8).tobytes()
        files[f"{prefix}-images-idx3-ubyte"] = struct.pack(">4I", 0x803, n, SIDE, SIDE) + pixels
        files[f"{prefix}-labels-idx1-ubyte"] = struct.pack(">2I", 0x801, n) + bytes(i % 10 for i in range(n))
    return files


def cifar_records(count: int, seed: int = 0) -> bytes:
    """Return ``count`` records of CIFAR-10's binary version; record i has the label i modulo 10."""
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(count) % 10
    return records.tobytes()


def write_rows(path: Path, rows: NDArray[np.generic], separator: str = " ", end: str = "\r\n") -> None:
    """Write numbers as text, each with 8 digits and an exponent, one row a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [separator.join(f"{value: .7e}" for value in row) for row in rows]
    path.write_text(end.join(lines) + end, newline="")


def write_uci_har(folder: Path, part: str, count: int, persons: Sequence[int], seed: int = 0) -> NDArray[np.float64]:
    """Write UCI HAR's three files of ``part`` (train or test) and return the features, shape (count, 561)."""
    place = folder / "uci-har" / "UCI HAR Dataset" / part
    x = np.random.default_rng(seed).uniform(-1, 1, (count, 561))
    write_rows(place / f"X_{part}.txt", x)
    write_rows(place / f"y_{part}.txt", np.arange(count)[:, None] % 6 + 1)
    write_rows(place / f"subject_{part}.txt", np.resize(persons, count)[:, None])
    return x


def write_fashion_mnist(folder: Path, train: int = 2000, test: int = 400) -> None:
    """Write Fashion-MNIST's four files, not packed, below ``folder``."""
    place = folder / "fashion-mnist"
    place.mkdir(parents=True)
    for name, data in idx_files(train, test).items():
        (place / name).write_bytes(data)


def write_cifar10(folder: Path, batch: int = 400, test: int = 400) -> None:
    """Write CIFAR-10's five training batches and its test batch below ``folder``."""
    place = folder / "cifar10"
    place.mkdir(parents=True)
    for number in range(1, 6):
        (place / f"data_batch_{number}.bin").write_bytes(cifar_records(batch, number))
    (place / "test_batch.bin").write_bytes(cifar_records(test, 9))


def write_both_parts_of_uci_har(folder: Path) -> None:
    """Write UCI HAR below ``folder``, 600 windows of 20 persons and 60 of 6 others."""
    write_uci_har(folder, "train", 600, range(1, 21))
    write_uci_har(folder, "test", 60, range(21, 27), seed=1)


MADE: dict[str, Callable[[Path], None]] = {
    "cifar10": write_cifar10,
    "fashion-mnist": write_fashion_mnist,
    "uci-har": write_both_parts_of_uci_har,
}
"""Writers of the data sets that the experiments in ``deploy/`` use, large enough for their partitions."""
