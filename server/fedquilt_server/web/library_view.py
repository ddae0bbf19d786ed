"""Renders the pages of a folder of runs: the list and a comparison."""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.terminal_text import printable
from fedquilt_server.library.scales import score_text
from fedquilt_server.web.fragments import create_environment
from fedquilt_server.web.run_comparison import MOST_COMPARED, RunsSideBySide
from fedquilt_server.web.run_table import COLUMNS, NUMBERS, SHOWN, STATUSES, RunPage


class LibraryRenderer:
    """Renders the templates.

    Args:
        folder: the folder of the runs, as its user named it.
    """

    def __init__(self, folder: Path) -> None:
        self._env = create_environment()
        self._env.filters["score"] = score_text
        self._env.globals.update(
            root="",
            library=printable(str(folder)),
            columns=COLUMNS,
            numbers=NUMBERS,
            page_size=SHOWN,
            most_compared=MOST_COMPARED,
            statuses=STATUSES,
        )

    def runs(self, page: RunPage) -> str:
        """Render the list of runs."""
        return self._env.get_template("runs.html").render(page=page, query=page.query)

    def comparison(self, side: RunsSideBySide) -> str:
        """Render a comparison."""
        return self._env.get_template("comparison.html").render(
            pairs=list(zip(side.found, side.comparison.runs, strict=True)),
            rows=side.rows,
            differences=side.comparison.differences,
            known=any(run.settings is not None for run in side.comparison.runs),
            notes=side.comparison.notes,
        )
