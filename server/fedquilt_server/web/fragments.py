"""Renders the page and its live parts as HTML. Jinja escapes every value."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedquilt_server.status.privacy_text import delta_text, epsilon_text, most_spent
from fedquilt_server.status.problems import list_problems
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.run_file_names import BOARDS, CLASSES, CLIENTS, EVENTS, REPLIES, ROUNDS, TELEMETRY
from fedquilt_server.status.snapshot import ENDED, Snapshot
from fedquilt_server.status.units import DASH
from fedquilt_server.status.waiting import describe_waiting
from fedquilt_server.web import text, view
from fedquilt_server.web.assets import digest_files, list_modules
from fedquilt_server.web.cells import BoardCells
from fedquilt_server.web.missing import list_missing
from fedquilt_server.web.privacy_view import view_privacy

PARTS = ("status", "waiting", "summary", "privacy")
"""The parts of the page that are small and change often. Each is the name of a template and of a server-sent event."""

DOWNLOADS = (ROUNDS, CLIENTS, CLASSES, REPLIES, BOARDS, TELEMETRY, EVENTS)
"""Files of the run folder to which the page has links; each run has them."""
ENTRIES = ("page.js", "runs.js", "comparison.js")
"""The scripts of the pages."""

BOARDS_SHOWN = 400
ROUNDS_SHOWN = 20
EVENTS_SHOWN = 100
MISSING_SHOWN = 60


@functools.cache
def create_environment() -> Environment:
    """Create the Jinja environment with the filters. An unknown name in a template raises an error.

    All pages of a process share it, because each environment compiles its templates.
    """
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters.update(text.FILTERS, delta=delta_text, epsilon=epsilon_text)
    env.globals.update(
        static=f"static/{digest_files()}",
        modules={entry: list_modules(entry) for entry in ENTRIES},
        dash=DASH,
        ended=ENDED,
        run_files=DOWNLOADS,
        rounds_shown=ROUNDS_SHOWN,
        events_shown=EVENTS_SHOWN,
        boards_shown=BOARDS_SHOWN,
    )
    return env


class Renderer:
    """Renders the templates."""

    def __init__(self) -> None:
        self._env = create_environment()

    def parts(self, snapshot: Snapshot, summary: view.Summary) -> dict[str, str]:
        """Render the small parts of the page, by name."""
        missing = list_missing(snapshot)
        context = {
            "s": snapshot,
            "summary": summary,
            "waits": describe_waiting(snapshot),
            "problems": list_problems(snapshot),
            "notes": view.list_notes(snapshot, summary.results),
            "privacy": view_privacy(snapshot),
            "most_spent": most_spent(snapshot.privacy),
            "missing": missing[:MISSING_SHOWN],
            "more_missing": max(0, len(missing) - MISSING_SHOWN),
        }
        return {part: self._render(part, context) for part in PARTS}

    def rounds(self, rows: Sequence[RoundResult], columns: view.RoundColumns) -> str:
        """Render the table of the latest rounds, newest first."""
        return self._render("rounds", {"rows": rows, "columns": columns})

    def round_rows(self, rows: Sequence[RoundResult], columns: view.RoundColumns) -> str:
        """Render rows of that table."""
        return self._render("round_rows", {"rows": rows, "columns": columns})

    def board_rows(self, boards: Mapping[str, BoardCells]) -> str:
        """Render rows of the list of boards."""
        return self._render("board_rows", {"boards": boards})

    def event_rows(self, events: Sequence[RunEvent]) -> str:
        """Render rows of the list of events."""
        return self._render("event_rows", {"events": events})

    def page(self, context: Mapping[str, object]) -> str:
        """Render the whole page."""
        return self._render("page", context)

    def _render(self, template: str, context: Mapping[str, object]) -> str:
        return self._env.get_template(f"{template}.html").render(context)
