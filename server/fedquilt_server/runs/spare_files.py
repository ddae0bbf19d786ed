"""Spare files: no longer needed, and written over by the next large files.

A file system takes as long to free and to allocate the blocks of a large file as to write it. The sync of a file with
new blocks also waits until those of other files are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

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
        self._waiting = list[Path]()
        self._serial = 0

    def retire(self, paths: Iterable[Path]) -> None:
        """Keep some of these files as spare ones, and delete the others.

        A file that is open, or of which an array is in use, is deleted: whoever uses it still reads the same bytes.

        Raises:
            OSError: a file cannot be deleted.
        """
        moved = list[Path]()
        for path in paths:
            if len(self._waiting) + len(moved) < _MOST and path.stat().st_size >= _SMALLEST:
                self._serial += 1
                moved.append(path.replace(self._folder / f"spare-{self._serial}"))  # nobody can open it from now on
            else:
                path.unlink()
        used = _used_files() if moved else set()
        for path in moved:
            if used is None or path.name in used:
                path.unlink()
            else:
                self._waiting.append(path)

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
            names.add(os.path.basename(os.readlink(descriptor)))  # noqa: PTH119, PTH115 - for thousands of them
    return names
