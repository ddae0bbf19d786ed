"""Turn errors of the disk, such as a full one, into an error that names the folder and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError

_OF_THE_DISK: Final = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT,
    errno.ENOTDIR,
})  # fmt: skip


@contextmanager
def report_disk_errors(folder: Path) -> Iterator[None]:
    """Run a block that works in ``folder``.

    Raises:
        RunFolderError: a file in it could not be read or written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        place = error.filename or folder
        raise RunFolderError(
            f"{place} cannot be used: {error.strerror}. Free disk space in {folder} or make it writable, then run the "
            "same command again to resume"
        ) from error
