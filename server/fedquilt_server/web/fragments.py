"""Renders the page and its live parts as HTML. Jinja escapes every value."""

from __future__ import annotations

import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.waiting import DASH, describe_waiting
from fedquilt_server.web import text, view

PARTS = ("status", "summary", "boards", "rounds", "rejections")
"""The parts of the page that change. Each is the name of a template and of a server-sent event."""

BOARDS_SHOWN = 100
ROUNDS_SHOWN = 20
REJECTIONS_SHOWN = 20
JOBS_SHOWN = 16


def create_environment() -> Environment:
    """Create the Jinja environment with the filters. An unknown name in a template raises an error."""
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters.update(text.FILTERS)
    return env


class Renderer:
    """Renders the page. Each snapshot is rendered once for all readers."""

    def __init__(self) -> None:
        self._env = create_environment()
        self._snapshot: Snapshot | None = None
        self._parts: dict[str, str] = {}

    def page(self, snapshot: Snapshot) -> str:
        """Render the whole page."""
        return self._env.get_template("page.html").render(now=time.time(), parts=self.parts(snapshot))

    def parts(self, snapshot: Snapshot) -> dict[str, str]:
        """Render the live parts of the page, by name."""
        if snapshot is not self._snapshot:
            context = _template_context(snapshot)
            self._parts = {part: self._env.get_template(f"{part}.html").render(context) for part in PARTS}
            self._snapshot = snapshot
        return self._parts


def _template_context(snapshot: Snapshot) -> dict[str, object]:
    """Return the names that the templates can use."""
    return {
        "s": snapshot,
        "summary": view.summarise(snapshot),
        "waits": describe_waiting(snapshot),
        "dash": DASH,
        "boards": snapshot.boards[:BOARDS_SHOWN],
        "rows": snapshot.history[: -ROUNDS_SHOWN - 1 : -1],
        "rejections": snapshot.rejections[:REJECTIONS_SHOWN],
        "jobs_shown": JOBS_SHOWN,
    }
