"""Turn errors of the disk, such as a full one, into an error that names the folder and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from fedquilt_common.error_messages import AGAIN, RESUME
from fedquilt_common.errors import RunFolderError

_OF_A_FAULTY_DISK: Final = frozenset({"EIO", "EUCLEAN", "ENODEV", "ENXIO", "ESTALE"})
"""Names of the errors of a disk that is broken or gone; some systems do not have all of them."""
_OF_THE_DISK: Final = _OF_A_FAULTY_DISK | {
    "ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ELOOP",
    "ENAMETOOLONG",
}  # fmt: skip
_FAULTY: Final = "Check that the disk is connected, and check its file system with `fsck`"


def report_run_errors(folder: Path) -> AbstractContextManager[None]:
    """Run a block that works in ``folder``, for a coordinator. Raises as ``report_disk_errors``."""
    return report_disk_errors(folder, RESUME)


@contextmanager
def report_disk_errors(folder: Path, again: str = AGAIN) -> Iterator[None]:
    """Run a block that works in ``folder``.

    Args:
        folder: where the block reads and writes.
        again: what to do after the remedy.

    Raises:
        RunFolderError: a file in it could not be read or written.
    """
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0)
        if name not in _OF_THE_DISK:
            raise
        place = error.filename or folder
        advice = _advise(name, folder, again)
        raise RunFolderError(f"{place} cannot be used: {error.strerror}. {advice}") from error


def _advise(name: str | None, folder: Path, again: str) -> str:
    """Return what to do about an error, by its name in ``errno``."""
    if name in ("EEXIST", "ELOOP", "ENAMETOOLONG"):
        return f"Choose another folder than {folder}"
    advice = "Free disk space there, or make it writable"
    if name in _OF_A_FAULTY_DISK:
        advice = _FAULTY
    elif name in ("EACCES", "EPERM"):
        advice = "Let this user read and write it"
    elif name == "EISDIR":
        advice = "A folder is in the place of a file: move it away"
    elif name in ("ENOENT", "ENOTDIR"):
        advice = f"Check that {folder} exists or can be made, and that its disk is mounted"
    return f"{advice}, then {again}"
