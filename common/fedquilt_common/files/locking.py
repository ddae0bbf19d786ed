"""One process a folder: two coordinators on one journal, or two agents on one state, would destroy it."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO, Final

from fedquilt_common.errors import FolderInUseError

WAIT_SECONDS: Final = 10.0
"""How long a process that is just being stopped may still hold its folder."""


def lock_folder(folder: Path, wait: float = WAIT_SECONDS, name: str = ".lock") -> IO[str]:
    """Make ``folder`` and hold it for as long as the returned file is open; the system lets go of a dead process's.

    Raises:
        FolderInUseError: when another process still holds it after ``wait`` seconds, or a file is in its place.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FolderInUseError(f"{folder} cannot be a folder, a file is in its place: choose another") from None
    file = (folder / name).open("w")
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                file.close()
                raise FolderInUseError(
                    f"another process works in {folder}: wait for it, stop it, or choose another folder"
                ) from None
            time.sleep(0.05)
        else:
            return file
