"""Find the partitions of a disk image in its partition table, MBR or GPT."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from fedquilt_common.errors import ImageError

SECTOR: Final = 512
_MOST_ENTRIES: Final = 1024
_EMPTY: Final = bytes(16)
_EXT_MAGIC: Final = (1024 + 56, b"\x53\xef")
"""Where the superblock of ext2, ext3 and ext4 holds its magic number."""


@dataclass(frozen=True)
class DiskPartition:
    """A partition. ``start`` and ``size`` are in bytes; ``label`` is the label of its FAT file system."""

    number: int
    start: int
    size: int
    label: str


def boot_partition(image: Path) -> DiskPartition | None:
    """Return the first partition of an image that holds a FAT file system; None without one.

    Raises:
        ImageError: the file is not a disk image, or ends before its partitions end.
    """
    length = image.stat().st_size
    with image.open("rb") as file:
        for number, start, size in _read_partitions(file, image):
            if start + size > length:
                raise ImageError(
                    f"{image}: partition {number} ends at byte {start + size}, but the file has only {length} bytes; "
                    "the file is incomplete: download it again"
                )
            label = _fat_label(file, start)
            if label is not None:
                return DiskPartition(number, start, size, label)
    return None


def ext_partition_start(image: Path) -> int | None:
    """Return the first byte of the first partition that holds ext2, ext3 or ext4; None without one.

    Raises:
        ImageError: the file is not a disk image.
    """
    offset, magic = _EXT_MAGIC
    with image.open("rb") as file:
        starts = [start for _, start, _ in _read_partitions(file, image)]
        return next((start for start in starts if _read(file, start + offset, len(magic)) == magic), None)


def _read_partitions(file: BinaryIO, image: Path) -> list[tuple[int, int, int]]:
    """Return the number, start and size of each partition, in bytes."""
    first = _read(file, 0, SECTOR)
    if len(first) < SECTOR or first[510:] != b"\x55\xaa":
        raise ImageError(f"{image}: is not a disk image (no partition table); if it is an archive, unpack it first")
    entries = [struct.unpack_from("<B3xB3xII", first, 446 + 16 * number) for number in range(4)]
    if any(kind == 0xEE for _, kind, _, _ in entries):
        return _read_gpt(file, image)
    return [
        (number, start * SECTOR, size * SECTOR)
        for number, (_, kind, start, size) in enumerate(entries, 1)
        if kind and size
    ]


def _read_gpt(file: BinaryIO, image: Path) -> list[tuple[int, int, int]]:
    header = _read(file, SECTOR, SECTOR)
    if header[:8] != b"EFI PART":
        raise ImageError(f"{image}: its partition table is damaged; download it again")
    offset, count, width = struct.unpack_from("<QII", header, 72)
    if not 0 < count <= _MOST_ENTRIES or not 128 <= width <= 4096:
        raise ImageError(f"{image}: its partition table is damaged; download it again")
    partitions = []
    for number in range(count):
        entry = _read(file, offset * SECTOR + number * width, 56)
        if len(entry) == 56 and entry[:16] != _EMPTY:
            first, last = struct.unpack_from("<QQ", entry, 32)
            partitions.append((number + 1, first * SECTOR, (last - first + 1) * SECTOR))
    return partitions


def _fat_label(file: BinaryIO, start: int) -> str | None:
    """Return the volume label in the boot sector of a FAT12, FAT16 or FAT32; None for other file systems."""
    sector = _read(file, start, SECTOR)
    if len(sector) < SECTOR or sector[510:] != b"\x55\xaa":
        return None
    for kind, label in ((82, 71), (54, 43)):
        if sector[kind : kind + 3] == b"FAT":
            return sector[label : label + 11].decode("ascii", "replace").strip()
    return None


def _read(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)
