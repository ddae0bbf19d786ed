"""Files whose SHA-256 was found right a moment ago, so that they need not be read again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

_REMEMBERED: Final = 4096
_SECONDS: Final = 60.0
"""How long a file counts as intact: later, the system may have to read it from a disk that has damaged it."""


class FileVersion(NamedTuple):
    """What changes when a file is written or replaced: time in ns, size in bytes, and number on the disk."""

    modified: int
    size: int
    inode: int


class IntactFiles:
    """Remembers the versions of the last files that had the right SHA-256, for a minute each."""

    def __init__(self) -> None:
        self._versions: dict[Path, tuple[FileVersion, float]] = {}

    def add(self, path: Path) -> None:
        """Remember a file that has the right SHA-256 as it is now; a missing one is not remembered."""
        self._versions.pop(path, None)
        version = version_of(path)
        if version is not None:
            self._versions[path] = version, time.monotonic()
        while len(self._versions) > _REMEMBERED:
            del self._versions[next(iter(self._versions))]

    def find(self, path: Path) -> FileVersion | None:
        """Return the version of a file that is remembered and has not changed; None otherwise."""
        version, checked_at = self._versions.get(path, (None, 0.0))
        is_known = version is not None and time.monotonic() - checked_at < _SECONDS
        return version if is_known and version == version_of(path) else None


def version_of(path: Path) -> FileVersion | None:
    """Return the version of a file; None if there is none, or it cannot be reached."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileVersion(status.st_mtime_ns, status.st_size, status.st_ino)
