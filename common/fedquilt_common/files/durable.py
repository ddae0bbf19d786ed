"""Files that are there after a power cut, whole: contents first, then the name."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(source: Path, target: Path) -> None:
    """Give a finished file its name; after a crash the name stands for the old file or the new."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def write_durably(path: Path, text: str) -> None:
    """Replace a small text file; a reader, a crash or a power cut leaves the old text or the new."""
    replace_durably(_fresh(path, text), path)


def write_atomically(path: Path, text: str) -> None:
    """The same for a file that can be made again: no reader sees half of it, but nothing waits for the disk."""
    _fresh(path, text).replace(path)


def new_private(path: Path) -> Path:
    """An empty file for its owner's eyes only, from its first moment on."""
    path.unlink(missing_ok=True)
    path.touch(0o600, exist_ok=False)
    return path


def _fresh(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
    return fresh
