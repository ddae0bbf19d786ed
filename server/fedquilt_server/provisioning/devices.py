"""Block devices that an image may be written to: what they are is asked of Linux, and doubt is a no."""

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
    """What is at ``path``, if an image may be written there.

    Raises ImageError for anything but a whole, removable disk of which nothing is mounted or in use.
    """
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}; `lsblk` lists the devices that there are") from None
    if not stat.S_ISBLK(mode):
        raise ImageError(f"{path} is no block device; for an image file use --out")
    return _checked(path, real.name)


def _checked(path: Path, name: str) -> Device:
    entry = SYS / name
    if not entry.is_dir() or (entry / "partition").exists():
        raise ImageError(f"{path} is not a whole disk but a part of one; name the disk, such as /dev/sdX")
    if not _is_removable(entry):
        raise ImageError(f"{path} is not removable: fedquilt writes cards and USB sticks only")
    used = _in_use(name)
    if used:
        raise ImageError(f"{path} is in use ({', '.join(used)}); unmount it first: sudo umount {path}*")
    size = int(_word(entry / "size") or 0) * _SECTOR
    if not size:
        raise ImageError(f"{path} is empty: is there a card in the reader?")
    return Device(path, _word(entry / "device" / "model") or _word(entry / "device" / "name"), size)


def _is_removable(entry: Path) -> bool:
    """Readers that are built in say that they are not, but an SD card (unlike soldered eMMC) can be taken out."""
    return _word(entry / "removable") == "1" or _word(entry / "device" / "type") == "SD"


def _in_use(name: str) -> list[str]:
    """Where the disk or a partition of it is mounted, swap, or part of something else."""
    parts = {name, *(entry.parent.name for entry in SYS.glob(f"{name}/{name}*/partition"))}
    mounted = [where for device, where in _pairs(MOUNTS) if Path(device).resolve().name in parts]
    swapped = ["swap" for device, _ in _pairs(SWAPS) if Path(device).name in parts]
    held = [holder.name for part in parts for holder in (SYS / part / "holders").glob("*")]
    return [*mounted, *swapped, *held]


def _pairs(path: Path) -> Iterable[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    return [(words[0], words[1]) for words in map(str.split, lines) if len(words) > 1 and words[0].startswith("/")]


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
