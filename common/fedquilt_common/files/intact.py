"""Which files were verified within the last minute, so that nobody reads them again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from fedquilt_common.files.file_stamp import FileStamp, stamp

_REMEMBERED: Final = 4096
_SECONDS: Final = 60.0
"""How long a file counts as intact: later, the system may have to read it from a disk that has damaged it."""


class IntactFiles:
    """Remembers the stamps of the last files that had the right digest, for a minute each."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[FileStamp, float]] = {}

    def add(self, path: Path) -> None:
        """Remember a file that has the right digest as it is now; a missing one is not remembered."""
        self._known.pop(path, None)
        found = stamp(path)
        if found is not None:
            self._known[path] = found, time.monotonic()
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def find(self, path: Path) -> FileStamp | None:
        """Return the stamp of a file that is remembered and has not changed; None otherwise."""
        known, checked_at = self._known.get(path, (None, 0.0))
        is_recent = time.monotonic() - checked_at < _SECONDS
        return known if is_recent and known is not None and known == stamp(path) else None
