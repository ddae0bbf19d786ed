"""Files that nobody needs any more, for the next ones to be written over.

A file system takes as long to free and to allocate the blocks of a large file as to write it. The sync of a file with
new blocks also waits until those of other files are written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MOST: Final = 16
_SMALLEST: Final = 1 << 20
"""Bytes of a file from which it is worth keeping."""
_MAPS: Final = Path("/proc/self/maps")


class SpareFiles:
    """Up to 16 spare files in a folder.

    Args:
        folder: where they wait; whoever opens the folder again deletes what is left there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting = list[Path]()
        self._serial = 0

    def retire(self, paths: list[Path]) -> None:
        """Keep some of these files as spare ones, and delete the others.

        A file of which arrays are still in use stays as it is on the disk, without a name.

        Raises:
            OSError: a file cannot be deleted.
        """
        mapped = _mapped_files()
        for path in paths:
            is_free = mapped is not None and f"/{path.name}\n" not in mapped
            if is_free and len(self._waiting) < _MOST and path.stat().st_size >= _SMALLEST:
                self._serial += 1
                self._waiting.append(path.replace(self._folder / f"spare-{self._serial}"))
            else:
                path.unlink()

    def take(self) -> Path | None:
        """Return a file to write over; None if there is none."""
        return self._waiting.pop() if self._waiting else None

    def place(self, path: Path) -> Path:
        """Move a spare file, if there is one, to ``path``, to write over it there; returns ``path``."""
        if (spare := self.take()) is not None:
            spare.replace(path)
        return path

    def clear(self) -> None:
        """Delete all spare files.

        Raises:
            OSError: a file cannot be deleted.
        """
        while (path := self.take()) is not None:
            path.unlink(missing_ok=True)


def _mapped_files() -> str | None:
    """Return the lines that name the files in this process's memory; None if the system does not tell."""
    try:
        return _MAPS.read_text(errors="replace")
    except OSError:
        return None
