"""Check that a block device is a removable, unused disk before an image is written to it. When in doubt, refuse."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import ImageError

SYS, MOUNTS, SWAPS = Path("/sys/class/block"), Path("/proc/mounts"), Path("/proc/swaps")
_SECTOR: Final = 512


@dataclass(frozen=True)
class Device:
    """A removable disk. ``size`` in bytes."""

    path: Path
    model: str
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.model or 'unknown model'}, {self.size / 1e9:.1f} GB)"


def removable_device(path: Path) -> Device:
    """Return the removable disk at ``path``.

    Raises:
        ImageError: it is not a whole, removable disk, or a part of it is mounted or in use.
    """
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}; `lsblk` lists the devices") from None
    if not stat.S_ISBLK(mode):
        raise ImageError(f"{path} is not a block device; for an image file, use --out")
    return _check_disk(path, real.name)


def _check_disk(path: Path, name: str) -> Device:
    entry = SYS / name
    if not entry.is_dir() or (entry / "partition").exists():
        raise ImageError(f"{path} is not a whole disk; name the disk, such as /dev/sdX")
    if not _is_removable(entry):
        raise ImageError(f"{path} is not removable: fedquilt only writes cards and USB sticks")
    users = _find_users(name)
    if users:
        raise ImageError(f"{path} is in use ({', '.join(users)}); unmount it first: sudo umount {path}*")
    size = int(_read_text(entry / "size") or 0) * _SECTOR
    if not size:
        raise ImageError(f"{path} is empty: insert a card into the reader")
    return Device(path, _read_text(entry / "device" / "model") or _read_text(entry / "device" / "name"), size)


def _is_removable(entry: Path) -> bool:
    """Built-in readers are not marked as removable, but an SD card (unlike soldered eMMC) can be removed."""
    return _read_text(entry / "removable") == "1" or _read_text(entry / "device" / "type") == "SD"


def _find_users(name: str) -> list[str]:
    """List what uses the disk or its partitions: mount points, swap and other block devices."""
    names = {name, *(entry.parent.name for entry in SYS.glob(f"{name}/{name}*/partition"))}
    mounted = [where for device, where in _read_mounts(MOUNTS) if Path(device).resolve().name in names]
    swapped = ["swap" for device, _ in _read_mounts(SWAPS) if Path(device).name in names]
    held = [holder.name for part in names for holder in (SYS / part / "holders").glob("*")]
    return [*mounted, *swapped, *held]


def _read_mounts(path: Path) -> Iterable[tuple[str, str]]:
    """Read the device and the second column of each line; nothing if the file is missing."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    return [(words[0], words[1]) for words in map(str.split, lines) if len(words) > 1 and words[0].startswith("/")]


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
