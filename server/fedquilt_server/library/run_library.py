"""The runs of a folder: each with an identifier that is safe in addresses, read again only when its files change."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.files.file_stamp import stamp
from fedquilt_common.terminal_text import printable
from fedquilt_server.library.recorded_run import MOST_LEVELS, find_runs, read_run
from fedquilt_server.library.run_list import RunRow, run_row
from fedquilt_server.runs.run_folder import is_in_use
from fedquilt_server.status.run_file_names import EXPERIMENT, JOURNAL, RESULT

SHARE: Final = 0.1
"""The largest share of the time that looking for runs takes."""
LEAST_SECONDS: Final = 1.0
"""The folder is searched at most once within this time."""
LONGEST_ID: Final = 120
_DIGEST: Final = 12
_SAFE: Final = re.compile(r"[A-Za-z0-9._=,+-]+")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=,+-]+")


@dataclass(frozen=True)
class LibraryRun:
    """One run of a folder.

    Attributes:
        id: stays the same as long as the run folder keeps its place.
        folder: the run folder.
        path: the run folder, from the library's folder.
        row: what a list shows.
        stamps: what its files were when they were read.
    """

    id: str
    folder: Path
    path: str
    row: RunRow
    stamps: tuple[object, ...]

    @property
    def parents(self) -> str:
        """The folders before its last part, such as ``sweep/case/``; empty if it lies in the library's folder."""
        return self.path[: self.path.rfind("/") + 1]

    @property
    def leaf(self) -> str:
        """The last part of its path: what tells it from its neighbours."""
        return self.path.rpartition("/")[2].removeprefix(".") or self.id


class RunLibrary:
    """The runs in a folder and below it. Several threads may use it.

    Args:
        folder: holds run folders.
        levels: levels of folders below it that are searched.
    """

    def __init__(self, folder: Path, levels: int = MOST_LEVELS) -> None:
        self.folder = folder
        self._levels = levels
        self._lock = threading.Lock()
        self._runs: dict[str, LibraryRun] = {}
        self._search_at = 0.0

    def list(self) -> Sequence[LibraryRun]:
        """Return all runs, in alphabetical order of their folders; at most a second old.

        Raises:
            RunFolderError: the folder is gone, or holds too many runs.
        """
        with self._lock:
            started = time.monotonic()
            if started >= self._search_at:
                self._runs = self._search()
                ended = time.monotonic()
                self._search_at = ended + max(LEAST_SECONDS, (ended - started) / SHARE)
            return tuple(self._runs.values())

    def find(self, id: str) -> LibraryRun | None:
        """Return a run; None if there is none with that identifier.

        Raises:
            RunFolderError: as ``list``.
        """
        self.list()
        return self._runs.get(id)

    def _search(self) -> dict[str, LibraryRun]:
        ids = {run_id(folder, self.folder): folder for folder in find_runs(self.folder, self._levels)}
        return {id: self._read(id, folder) for id, folder in ids.items()}

    def _read(self, id: str, folder: Path) -> LibraryRun:
        files = (stamp(folder / RESULT), stamp(folder / EXPERIMENT))
        stamps = (*files, (folder / JOURNAL).exists(), is_in_use(folder))
        known = self._runs.get(id)
        if known is not None and known.stamps == stamps:
            return known
        path = folder.relative_to(self.folder).as_posix()
        return LibraryRun(id, folder, printable(path), run_row(read_run(folder)), stamps)


def run_id(folder: Path, library: Path) -> str:
    """Return the identifier of a run: its path below the library, such as ``sweep~fedavg``.

    It needs no escapes in addresses and HTML. A path with other characters, or a long one, gets a digest.
    """
    parts = folder.relative_to(library).parts or (library.resolve().name,)
    plain = "~".join(parts)
    if all(_SAFE.fullmatch(part) for part in parts) and len(plain) <= LONGEST_ID:
        return plain
    words = "~".join(_UNSAFE.sub("-", part) for part in parts)[: LONGEST_ID - _DIGEST - 2]
    return f"{words}~~{hashlib.sha256(os.fsencode('/'.join(parts))).hexdigest()[:_DIGEST]}"
