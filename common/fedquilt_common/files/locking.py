"""Lock a folder for one process, or hold a file that another process would write over.

Two coordinators on one journal, or two agents on one state, would destroy it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from pathlib import Path
from typing import IO, BinaryIO, Final

from fedquilt_common.errors import FolderInUseError
from fedquilt_common.files.folders import create_folder

LOCK: Final = ".lock"
"""The lock file's usual name."""
WAIT_SECONDS: Final = 10.0
"""Seconds that a process which is shutting down may still hold its folder."""
_HOLDER: Final = re.compile(r"([0-9]+) ([\w.-]+)")
"""Process id and host: containers that share a folder have the same process ids."""


def lock_folder(folder: Path, wait: float = WAIT_SECONDS, name: str = LOCK) -> IO[str]:
    """Create ``folder`` and lock it.

    The lock file holds the process id and the host, so that the next process can name this one.

    Args:
        folder: the folder to lock.
        wait: seconds to wait for another process to release it.
        name: the lock file in it.

    Returns:
        The open lock file. Closing it releases the lock; the system releases the lock of a dead process.

    Raises:
        FolderInUseError: another process holds the lock after ``wait`` seconds, ``folder`` or a parent is a file, or
            its file system has no locks.
    """
    create_folder(folder)
    file = (folder / name).open("a+")
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise _in_use(folder, file) from None
            time.sleep(0.05)
        except OSError as error:  # such as NFS without its lock service
            file.close()
            message = f"{folder}: its file system cannot lock files ({error.strerror}): choose a folder on a local disk"
            raise FolderInUseError(message) from None
        else:
            _write_holder(file)
            return file


def is_locked(folder: Path, name: str = LOCK) -> bool:
    """Return whether a process holds the lock of ``folder``; nothing is created or changed there."""
    try:
        with (folder / name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def hold(file: BinaryIO, path: Path) -> bool:
    """Hold an open file, so that no process that asks ``is_held`` writes over it until it is closed.

    Args:
        file: open for reading.
        path: where it was opened.

    Returns:
        Whether it is still at ``path``. One that has been moved away may be written over already.
    """
    with contextlib.suppress(OSError):  # without locks, every file counts as held
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Return whether some process holds a file, or this cannot be known: it is read-only, or there are no locks."""
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _write_holder(file: IO[str]) -> None:
    with contextlib.suppress(OSError):  # the lock holds without it, even on a full disk
        file.truncate(0)
        # not through the buffer, which would fail again when the file is closed
        os.write(file.fileno(), f"{os.getpid()} {socket.gethostname()}\n".encode())


def _in_use(folder: Path, file: IO[str]) -> FolderInUseError:
    with file:
        file.seek(0)
        holder = _HOLDER.fullmatch(file.read().strip())
    who = "process {} on {}".format(*holder.groups()) if holder else "another process"
    return FolderInUseError(f"{who} uses {folder}: wait for it, stop it, or choose another folder")
