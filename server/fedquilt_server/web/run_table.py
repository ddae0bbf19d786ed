"""The list of runs as a reader wants it: filtered, sorted, one page of it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlencode

from fedquilt_server.library.recorded_run import RecordedStatus
from fedquilt_server.library.run_library import LibraryRun
from fedquilt_server.status.problems import natural_key

SHOWN: Final = 200
"""Runs on one page of the list."""
SortKey = Literal[
    "name", "status", "algorithm", "dataset", "seed", "rounds", "final", "best", "seconds", "bytes", "joules", "started"
]
STATUSES: Final[tuple[RecordedStatus, ...]] = (
    "running", "failed", "damaged", "interrupted", "stopped", "unknown", "finished",
)  # fmt: skip
"""In the order in which they need attention."""
COLUMNS: Final[Mapping[SortKey, str]] = {
    "name": "Run", "status": "Status", "algorithm": "Algorithm", "dataset": "Data", "seed": "Seed", "rounds": "Rounds",
    "final": "Score", "best": "Best", "seconds": "Time", "bytes": "Bytes", "joules": "Energy", "started": "Started",
}  # fmt: skip
"""Heading of each column."""
NUMBERS: Final[frozenset[SortKey]] = frozenset({"seed", "rounds", "final", "best", "seconds", "bytes", "joules"})
NEWEST_FIRST: Final = "-started"
_WORDS: Final = ("name", "folder", "algorithm", "dataset", "status", "reason")


@dataclass(frozen=True)
class RunQuery:
    """What a reader asks of the list.

    Attributes:
        text: words that a run must contain, each in one of its texts.
        status: the status of the runs; empty for all.
        sort: a column, with "-" before it for the highest value first.
        page: number of the page, from 1.
    """

    text: str = ""
    status: str = ""
    sort: str = NEWEST_FIRST
    page: int = 1

    @property
    def column(self) -> str:
        """The column that the list is sorted by."""
        return self.sort.removeprefix("-") if self.sort.removeprefix("-") in COLUMNS else "started"

    @property
    def descends(self) -> bool:
        """Whether the highest value comes first."""
        return self.sort.startswith("-") or self.sort not in COLUMNS

    def link(self, **changes: object) -> str:
        """Return the address of the list with other choices, without those that are usual."""
        other = replace(self, **changes)  # type: ignore[arg-type]
        given = {"q": other.text, "status": other.status, "sort": other.sort, "page": str(other.page)}
        usual = {"q": "", "status": "", "sort": NEWEST_FIRST, "page": "1"}
        return f"?{urlencode({key: value for key, value in given.items() if value != usual[key]})}"

    def sort_link(self, column: str) -> str:
        """Return the address of the list sorted by a column; by the same one again, in the other order."""
        if column == self.column:
            return self.link(sort=column if self.descends else f"-{column}", page=1)
        return self.link(sort=f"-{column}" if column in NUMBERS or column == "started" else column, page=1)


@dataclass(frozen=True)
class RunPage:
    """One page of the list.

    Attributes:
        rows: the runs to show.
        first: number of the first of them, from 1.
        matching: runs that fit the query.
        total: runs of the library.
        counts: how many runs of the library have each status.
        pages: number of pages.
    """

    query: RunQuery
    rows: Sequence[LibraryRun]
    first: int
    matching: int
    total: int
    counts: Mapping[RecordedStatus, int]
    pages: int


def select_runs(runs: Sequence[LibraryRun], query: RunQuery) -> RunPage:
    """Return the runs that a reader asks for."""
    words = query.text.lower().split()
    found = [run for run in runs if query.status in ("", run.row.status) and _contains(run, words)]
    counts = Counter(run.row.status for run in runs)
    pages = max(1, math.ceil(len(found) / SHOWN))
    page = min(max(1, query.page), pages)
    start = (page - 1) * SHOWN
    rows = sort_runs(found, query.column, descends=query.descends)[start : start + SHOWN]
    shown = {status: counts[status] for status in STATUSES if counts[status]}
    return RunPage(replace(query, page=page), rows, start + 1, len(found), len(runs), shown, pages)


def _contains(run: LibraryRun, words: Sequence[str]) -> bool:
    texts = " ".join(str(getattr(run.row, name) or "") for name in _WORDS).lower() if words else ""
    return all(word in texts for word in words)


def sort_runs(runs: Sequence[LibraryRun], column: str, *, descends: bool) -> list[LibraryRun]:
    """Sort runs by a column; those without a value come last, equal ones in the order of their folders."""
    known = [run for run in runs if _is_known(run, column)]
    unknown = [run for run in runs if not _is_known(run, column)]
    return [*sorted(known, key=_key_of(column), reverse=descends), *unknown]


def _is_known(run: LibraryRun, column: str) -> bool:
    return column == "name" or getattr(run.row, column) is not None


def _key_of(column: str) -> Callable[[LibraryRun], Any]:
    if column == "name":
        return lambda run: natural_key(run.path)
    if column in ("algorithm", "dataset"):
        return lambda run: natural_key(getattr(run.row, column))
    if column == "status":
        return lambda run: STATUSES.index(run.row.status) if run.row.status in STATUSES else len(STATUSES)
    if column in ("final", "best"):
        return lambda run: (run.row.score or "", getattr(run.row, column))
    return lambda run: getattr(run.row, column)
