"""Brings files to the disk in another thread."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

_MOST: Final = 8
"""Files under way at most: each one is open."""


class BackgroundSync:
    """Brings files to the disk while the caller goes on: a sync of a large file takes up to 0.1 s.

    The first file starts the thread.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []

    @property
    def is_done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return all(sync.done() for sync in self._begun)

    def begin(self, path: Path) -> None:
        """Begin with a file; it may be renamed or deleted meanwhile. Waits for the first one if there are too many.

        Raises:
            OSError: it cannot be opened, or the disk is full or broken.
        """
        if len(self._begun) >= _MOST:
            self._begun.pop(0).result()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._thread = self._thread or ThreadPoolExecutor(1, "sync")
        self._begun.append(self._thread.submit(_sync_and_close, descriptor))

    def wait(self) -> None:
        """Wait until the contents of all files are on the disk.

        Raises:
            OSError: the disk is full or broken.
        """
        begun, self._begun = self._begun, []
        for sync in begun:
            sync.result()

    def close(self) -> None:
        """End the thread, after the files that it has begun with."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def _sync_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
