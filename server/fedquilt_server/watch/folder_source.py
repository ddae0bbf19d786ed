"""Follow a run through its folder: through the page whose address it holds, and through its files without a page."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import FedquiltError, RunFolderError
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_server.library.live_page import LivePage
from fedquilt_server.library.recorded_run import KILLED
from fedquilt_server.runs.page_address import read_page
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.runs.run_folder import is_in_use
from fedquilt_server.status.recorded import recorded_snapshot
from fedquilt_server.status.run_file_names import EXPERIMENT, RESULT
from fedquilt_server.status.snapshot import ENDED
from fedquilt_server.watch.state import WatchState
from fedquilt_server.watch.threaded import PAUSE_SECONDS, States

RESTART_SECONDS: Final = 30.0
"""A coordinator that was killed may be back within this time, such as with systemd."""
UNKNOWN: Final = "No page answers; result.json may lag and lists no boards"


def folder_states(folder: Path, token: str = "") -> States:
    """Return a function that yields the states of a folder's run.

    Args:
        folder: the run folder.
        token: token of the page; empty without one.

    Raises:
        RunFolderError: the folder holds no run.
    """
    if not (folder / RESULT).is_file() and read_page(folder) is None:
        raise RunFolderError(f"{folder} holds no {RESULT}, so there is no run to watch; name a run folder")
    reader = FolderReader(folder, token)

    def states(closing: threading.Event) -> Iterator[WatchState]:
        while not closing.is_set():
            yield reader.fetch()
            closing.wait(PAUSE_SECONDS)

    return states


class FolderReader:
    """Asks the run's page while a process holds the folder; else, or if it does not answer, reads ``result.json``.

    Another program may have the address of a page that has ended, and must not get its token.

    Args:
        folder: the run folder.
        token: token of the page; empty for the one in the folder.
    """

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._page = folder, LivePage(folder, token)
        self._in_use_at = -math.inf

    def fetch(self) -> WatchState:
        """Return the state now.

        Raises:
            RunFolderError: the result file is damaged.
        """
        live = self._page.fetch() if is_in_use(self._folder) else None
        if live is None:
            return self._from_files()
        self._in_use_at = time.monotonic()
        return WatchState(live, self._page.url)

    def _from_files(self) -> WatchState:
        result = read_result(self._folder)
        snapshot = recorded_snapshot(result, self._rounds())
        if snapshot.phase not in ENDED and self._is_left():
            snapshot = snapshot.model_copy(update={"phase": "interrupted", "message": KILLED})
        return WatchState(snapshot, str(self._folder), unknown="" if snapshot.phase in ENDED else UNKNOWN)

    def _is_left(self) -> bool:
        """Return whether no process has worked in the folder for ``RESTART_SECONDS``, as far as is known."""
        now = time.monotonic()
        if is_in_use(self._folder):
            self._in_use_at = now
        return now - self._in_use_at > RESTART_SECONDS

    def _rounds(self) -> int:
        """Return the number of rounds of the experiment; 0 if the file does not hold it."""
        value: Any = None
        with contextlib.suppress(OSError, FedquiltError):
            found = load_yaml(read_text(self._folder / EXPERIMENT), EXPERIMENT)
            value = found.get("rounds") if isinstance(found, dict) else None
        return value if isinstance(value, int) else 0
