"""What changes when a file changes, so that it is read again only then."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class FileStamp(NamedTuple):
    """Modification time in nanoseconds, size in bytes, and number of a file."""

    time: int
    size: int
    number: int


def stamp(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileStamp(found.st_mtime_ns, found.st_size, found.st_ino)
