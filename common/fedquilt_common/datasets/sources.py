"""Digests of the published files of a data set, and of the code that prepares them."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.durable import write_atomically

_SETTLED_SECONDS: Final = 2.0
"""A file that changed within this time can change again without another time of change."""


def digest_sources(place: Path, memory: Path) -> str:
    """Return the SHA-256, in hex, of the names and contents of all files below ``place``.

    Files are read again only if a name, size or time of change differs from those in ``memory``.

    Args:
        place: the data set's folder.
        memory: a folder for the digests of file lists that were read before.

    Raises:
        OSError: a file cannot be read, or ``memory`` cannot be written.
    """
    listed = hashlib.sha256(os.fsencode(place.resolve()))
    youngest, paths = 0, list(_list_files(place))
    for path in paths:
        state = path.stat()
        youngest = max(youngest, state.st_ctime_ns)
        listed.update(f"{path.relative_to(place)}\0{state.st_size} {state.st_ctime_ns} {state.st_ino}\n".encode())
    remembered = memory / listed.hexdigest()
    if remembered.is_file():
        return remembered.read_text()
    content = hashlib.sha256()
    for path in paths:
        content.update(f"{path.relative_to(place)}\0{digest_file(path, 'sha256')}\n".encode())
    if time.time_ns() - youngest > _SETTLED_SECONDS * 1e9:
        # A name of its own, because several processes may digest the same files at the same time.
        own = memory / f".{remembered.name}.{os.getpid()}.{threading.get_ident()}"
        write_atomically(own, content.hexdigest())
        own.replace(remembered)
    return content.hexdigest()


def _list_files(place: Path) -> Iterator[Path]:
    """List the files below ``place`` in order, even through links, without hidden ones."""
    for folder, names, files in os.walk(place, followlinks=True):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))


@functools.cache
def digest_loaders() -> str:
    """Return the SHA-256, in hex, of the modules of this package and of numpy's version."""
    total = hashlib.sha256(np.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
