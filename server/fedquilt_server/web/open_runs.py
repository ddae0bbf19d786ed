"""The runs of a library that somebody looks at: their number is bounded, and they are read again while that lasts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from fedquilt_server.library.run_library import LibraryRun, RunLibrary
from fedquilt_server.library.run_reader import RunReader
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.frames import FrameSource
from fedquilt_server.web.open_run import OpenRun

READ_SECONDS: Final = 1.0
"""Time between two looks at the files or the page of a run."""
LOOKED_AT_SECONDS: Final = 3.0
"""How long somebody counts as looking at a run after the last request; an open page asks several times a second."""
MOST_OPEN: Final = 16
_log = logging.getLogger(__name__)


class WatchedStore(StatusStore):
    """A store that notes when its snapshot was last asked for.

    Attributes:
        asked_at: time of the monotonic clock in seconds.
    """

    asked_at = 0.0

    @property
    def current(self) -> Snapshot:
        """The newest snapshot."""
        self.asked_at = time.monotonic()
        return super().current


class FollowedRun:
    """One open run with its reader. Several threads may refresh it.

    Args:
        run: what the library holds of it.

    Attributes:
        open: what the routes read.
    """

    def __init__(self, run: LibraryRun) -> None:
        self._store = WatchedStore()
        self._reader = RunReader(run.folder)
        self._lock = threading.Lock()
        self._read_at = -READ_SECONDS
        self.open = OpenRun(
            self._store, FrameSource(self._store, has_folder=True, in_library=True), threading.Event(), run.folder
        )

    @property
    def asked_at(self) -> float:
        """When somebody last looked at it."""
        return self._store.asked_at

    def note_request(self) -> None:
        """Note that somebody looks at it."""
        self._store.asked_at = time.monotonic()

    def refresh(self) -> None:
        """Read the run if it was not read within ``READ_SECONDS``."""
        with self._lock:
            if time.monotonic() - self._read_at >= READ_SECONDS:
                if (snapshot := self._reader.read()) is not None:
                    self._store.replace(snapshot)
                self._read_at = time.monotonic()

    def close(self) -> None:
        """End its event streams."""
        self.open.closing.set()
        with self._lock:
            self._reader.close()


class OpenRuns:
    """Opens the runs of a library. The routes call it from threads, because it reads files.

    Args:
        library: the runs.
        closing: set when the server closes: all event streams end.
        most: open runs; beyond, the one that nobody has looked at for the longest time is closed.
    """

    def __init__(self, library: RunLibrary, closing: threading.Event, most: int = MOST_OPEN) -> None:
        self._library, self._closing, self._most = library, closing, most
        self._lock = threading.Lock()
        self._runs: dict[str, FollowedRun] = {}
        self._follower: threading.Thread | None = None

    def find(self, id: str) -> OpenRun | None:
        """Return a run with a snapshot that is at most ``READ_SECONDS`` old; None if the library lacks it.

        Raises:
            RunFolderError: the library's folder is gone, or holds too many runs.
        """
        found = self._library.find(id)
        if found is None:
            return None
        run = self._open(found)
        run.refresh()
        return run.open

    def _open(self, found: LibraryRun) -> FollowedRun:
        with self._lock:
            run = self._runs.get(found.id)
            if run is None:
                self._make_room()
                run = self._runs[found.id] = FollowedRun(found)
            if self._follower is None:
                self._follower = threading.Thread(target=self._follow, name="open-runs", daemon=True)
                self._follower.start()
            run.note_request()
            return run

    def _make_room(self) -> None:
        while len(self._runs) >= self._most:
            oldest = min(self._runs, key=lambda id: self._runs[id].asked_at)
            self._runs.pop(oldest).close()

    def _follow(self) -> None:
        """Refresh the runs that somebody looks at, until the server closes."""
        while not self._closing.wait(READ_SECONDS):
            for run in self._all():
                if time.monotonic() - run.asked_at <= LOOKED_AT_SECONDS:
                    _try(run.refresh)
        for run in self._all():
            run.close()

    def _all(self) -> list[FollowedRun]:
        with self._lock:
            return list(self._runs.values())


def _try(refresh: Callable[[], None]) -> None:
    """Refresh one run; a folder that changes meanwhile must not end the following of the others."""
    try:
        refresh()
    except Exception:
        _log.exception("A run could not be read; its page shows what it held before")
