"""Write files that are complete after a power cut: the contents reach the disk before the name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

_WRITTEN_AHEAD: Final = 4 << 20
"""Bytes after which the disk begins to write a file that must be durable in the end."""
_START_WRITING: Final = 2
"""Linux' SYNC_FILE_RANGE_WRITE."""


def sync(path: Path) -> None:
    """Wait until a file's contents, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing(descriptor: int, unwritten: int) -> int:
    """Let the system begin to write an open file to the disk after each 4 MiB, so that a later ``sync`` waits less.

    Nothing happens on a system that has no such call, or if the file system refuses it: ``sync`` reports errors.

    Args:
        descriptor: the file.
        unwritten: bytes that were added since the system last began.

    Returns:
        The bytes that are still unwritten.
    """
    if unwritten < _WRITTEN_AHEAD:
        return unwritten
    if (call := _sync_file_range()) is not None:
        call(descriptor, 0, 0, _START_WRITING)
    return 0


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


def write_all(file: BinaryIO | io.FileIO, content: bytes | memoryview) -> None:
    """Write all of the bytes: a single call writes fewer if the disk is full, and the next one raises.

    Raises:
        OSError: the disk is full or broken.
    """
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def replace_durably(source: Path, target: Path) -> None:
    """Rename a finished file to ``target``; after a crash, ``target`` is the old file or the new one."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def write_durably(path: Path, text: str) -> None:
    """Replace a small text file; readers see the old text or the new one, even after a crash or a power cut."""
    with _written_draft(path, text) as draft:
        replace_durably(draft, path)


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file that can be made again: readers never see half of it, but a power cut may lose it."""
    with _written_draft(path, text) as draft:
        draft.replace(path)


def create_private(path: Path) -> Path:
    """Create an empty file that only its owner can read, from the start. An existing file is deleted first."""
    path.unlink(missing_ok=True)
    path.touch(0o600, exist_ok=False)
    return path


def delete_with_draft(path: Path) -> None:
    """Delete a file, and what a process that was killed may have left while it replaced that file."""
    path.unlink(missing_ok=True)
    _draft(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _written_draft(path: Path, text: str) -> Iterator[Path]:
    """Write the text to a new file next to ``path``; nothing of it is left after an error, such as a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
        yield draft
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
