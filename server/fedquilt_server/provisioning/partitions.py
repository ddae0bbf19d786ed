"""Partition tables of disk images, MBR and GPT, as far as finding a FAT partition needs them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from fedquilt_common.errors import ImageError

SECTOR: Final = 512
_MOST_ENTRIES: Final = 1024
_EMPTY: Final = bytes(16)


@dataclass(frozen=True)
class DiskPartition:
    """``start`` and ``size`` in bytes; ``label`` is that of the FAT file system."""

    number: int
    start: int
    size: int
    label: str


def boot_partition(image: Path) -> DiskPartition | None:
    """The first partition of an image that holds a FAT file system; None where there is none.

    Raises ImageError for a file that is no disk image, or one that ends before its partitions do.
    """
    length = image.stat().st_size
    with image.open("rb") as file:
        for number, start, size in _table(file, image):
            if start + size > length:
                raise ImageError(
                    f"{image}: partition {number} reaches to byte {start + size}, but the file has {length}; "
                    "it was cut off: fetch it again"
                )
            label = _fat_label(file, start)
            if label is not None:
                return DiskPartition(number, start, size, label)
    return None


def _table(file: BinaryIO, image: Path) -> list[tuple[int, int, int]]:
    first = _read(file, 0, SECTOR)
    if len(first) < SECTOR or first[510:] != b"\x55\xaa":
        raise ImageError(f"{image}: is no disk image (it has no partition table); unpack it first if it is an archive")
    entries = [struct.unpack_from("<B3xB3xII", first, 446 + 16 * number) for number in range(4)]
    if any(kind == 0xEE for _, kind, _, _ in entries):
        return _gpt(file, image)
    return [
        (number, start * SECTOR, size * SECTOR)
        for number, (_, kind, start, size) in enumerate(entries, 1)
        if kind and size
    ]


def _gpt(file: BinaryIO, image: Path) -> list[tuple[int, int, int]]:
    header = _read(file, SECTOR, SECTOR)
    if header[:8] != b"EFI PART":
        raise ImageError(f"{image}: its partition table is damaged; fetch it again")
    place, count, width = struct.unpack_from("<QII", header, 72)
    if not 0 < count <= _MOST_ENTRIES or not 128 <= width <= 4096:
        raise ImageError(f"{image}: its partition table is damaged; fetch it again")
    found = []
    for number in range(count):
        entry = _read(file, place * SECTOR + number * width, 56)
        if len(entry) == 56 and entry[:16] != _EMPTY:
            first, last = struct.unpack_from("<QQ", entry, 32)
            found.append((number + 1, first * SECTOR, (last - first + 1) * SECTOR))
    return found


def _fat_label(file: BinaryIO, start: int) -> str | None:
    """The volume label in the boot sector of a FAT12, 16 or 32; None for something else."""
    sector = _read(file, start, SECTOR)
    if len(sector) < SECTOR or sector[510:] != b"\x55\xaa":
        return None
    for kind, label in ((82, 71), (54, 43)):
        if sector[kind : kind + 3] == b"FAT":
            return sector[label : label + 11].decode("ascii", "replace").strip()
    return None


def _read(file: BinaryIO, place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)
