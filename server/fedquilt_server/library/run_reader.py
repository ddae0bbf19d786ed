"""Follows one run of a folder: through its page while that answers, else through its files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from fedquilt_common.files.file_stamp import FileStamp, stamp
from fedquilt_server.library.live_page import LivePage
from fedquilt_server.library.run_files import read_coverage
from fedquilt_server.library.run_snapshot import read_snapshot
from fedquilt_server.runs.page_address import PAGE
from fedquilt_server.runs.run_folder import is_in_use
from fedquilt_server.status.coverage import Coverage
from fedquilt_server.status.run_file_names import BOARDS, COVERAGE, EVENTS, EXPERIMENT, JOURNAL, REPLIES, RESULT
from fedquilt_server.status.snapshot import Snapshot

PAGE_SECONDS: Final = 2.0
"""How long the page of a run may take to answer: it is on this machine, as a rule."""
RETRY_SECONDS: Final = 5.0
"""Time before a page that did not answer is asked again."""
FILES: Final = (RESULT, EXPERIMENT, BOARDS, REPLIES, EVENTS, COVERAGE, PAGE)


class RunReader:
    """Reads the newest snapshot of a run.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._page = LivePage(folder, patience=PAGE_SECONDS)
        self._ask_page_at = 0.0
        self._shown: object = None
        self._coverage: tuple[FileStamp | None, Coverage | None] = (None, None)

    def read(self) -> Snapshot | None:
        """Return the newest snapshot; None if nothing has changed since the last call."""
        locked = is_in_use(self._folder)
        if locked and (live := self._ask_page()) is not None:
            return self._if_new(("page", live.run, live.version), live)
        now = (locked, (self._folder / JOURNAL).exists(), *(stamp(self._folder / name) for name in FILES))
        return None if now == self._shown else self._if_new(now, read_snapshot(self._folder))

    def close(self) -> None:
        """Close the connection to the page."""
        self._page.close()

    def _if_new(self, mark: object, snapshot: Snapshot) -> Snapshot | None:
        if mark == self._shown:
            return None
        self._shown = mark
        return snapshot

    def _ask_page(self) -> Snapshot | None:
        """Return what the page of the run reports, with the coverage, which has a file of its own."""
        if time.monotonic() < self._ask_page_at:
            return None
        found = self._page.fetch()
        if found is None:
            self._ask_page_at = time.monotonic() + RETRY_SECONDS
            return None
        return found.model_copy(update={"coverage": self._read_coverage()})

    def _read_coverage(self) -> Coverage | None:
        path = self._folder / COVERAGE
        if (now := stamp(path)) != self._coverage[0]:
            self._coverage = (now, read_coverage(path, []))
        return self._coverage[1]
