"""The page and its live parts as HTML, rendered on the server: Jinja escapes every value in them."""

from __future__ import annotations

import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.waiting import DASH, describe_waiting
from fedquilt_server.web import text, view

PARTS = ("status", "summary", "boards", "rounds", "rejections")
"""The parts of the page that change; each is a template and the name of a server-sent event."""

BOARDS_SHOWN = 100
ROUNDS_SHOWN = 20
REJECTIONS_SHOWN = 20
JOBS_SHOWN = 16


def environment() -> Environment:
    """Jinja with our filters; an unknown name in a template is an error, not an empty string."""
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters.update(text.FILTERS)
    return env


class Renderer:
    """Renders each snapshot once, however many readers are watching."""

    def __init__(self) -> None:
        self._env = environment()
        self._snapshot: Snapshot | None = None
        self._parts: dict[str, str] = {}

    def page(self, snapshot: Snapshot) -> str:
        """The whole page."""
        return self._env.get_template("page.html").render(now=time.time(), parts=self.parts(snapshot))

    def parts(self, snapshot: Snapshot) -> dict[str, str]:
        """Every part of the page by name."""
        if snapshot is not self._snapshot:
            names = _names(snapshot)
            self._parts = {part: self._env.get_template(f"{part}.html").render(names) for part in PARTS}
            self._snapshot = snapshot
        return self._parts


def _names(snapshot: Snapshot) -> dict[str, object]:
    """What the templates may use."""
    return {
        "s": snapshot,
        "summary": view.summary(snapshot),
        "waits": describe_waiting(snapshot),
        "dash": DASH,
        "boards": snapshot.boards[:BOARDS_SHOWN],
        "rows": snapshot.history[: -ROUNDS_SHOWN - 1 : -1],
        "rejections": snapshot.rejections[:REJECTIONS_SHOWN],
        "jobs_shown": JOBS_SHOWN,
    }
