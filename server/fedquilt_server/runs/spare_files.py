"""Spare files: no longer needed, and written over by the next large files.

A file system takes as long to free and to allocate the blocks of a large file as to write it. The sync of a file with
new blocks also waits until those of other files are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fedquilt_common.files.locking import is_held

_MOST: Final = 16
_SMALLEST: Final = 1 << 20
"""Bytes of a file from which it is worth keeping."""
_PROCESS: Final = Path("/proc/self")


class SpareFiles:
    """Up to 16 spare files in a folder.

    Args:
        folder: holds the spare files; each start empties it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting = dict[Path, int]()
        self._serial = 0

    def retire(self, paths: Iterable[Path]) -> None:
        """Keep some of these files as spare ones, and delete the others.

        A file that this process has open, whose array it uses, or that another process holds (``hold``), is deleted:
        whoever uses it still reads the same bytes.

        Raises:
            OSError: a file cannot be deleted.
        """
        moved = dict[Path, int]()
        for path in paths:
            size = path.stat().st_size
            if len(self._waiting) + len(moved) < _MOST and size >= _SMALLEST:
                self._serial += 1
                spare = self._folder / f"spare-{self._serial}"
                moved[path.replace(spare)] = size  # nobody can open or hold it from now on
            else:
                path.unlink()
        used = _used_files() if moved else set()
        for path, size in moved.items():
            if used is None or path.name in used or is_held(path):
                path.unlink()
            else:
                self._waiting[path] = size

    def take(self, size: int) -> Path | None:
        """Return the file to write ``size`` bytes over, the one of the closest size; None if there is none."""
        closest = min(self._waiting, key=lambda path: abs(self._waiting[path] - size), default=None)
        if closest is not None:
            del self._waiting[closest]
        return closest

    def clear(self) -> None:
        """Delete all spare files.

        Raises:
            OSError: a file cannot be deleted.
        """
        while self._waiting:
            path, _ = self._waiting.popitem()
            path.unlink(missing_ok=True)


def _used_files() -> set[str] | None:
    """Return the names of the files that this process has open or mapped; None if the system does not list them."""
    try:
        mapped = (_PROCESS / "maps").read_text(errors="replace").splitlines()
        descriptors = list((_PROCESS / "fd").iterdir())
    except OSError:
        return None
    names = {line.rpartition("/")[2] for line in mapped}
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            names.add(descriptor.readlink().name)
    return names
