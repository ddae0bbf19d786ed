"""The event stream behind the page: what changed since the last look, a few times a second at most."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator

import anyio
from sse_starlette import ServerSentEvent

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.fragments import Renderer
from fedquilt_server.web.view import curve, kept

LOOK_SECONDS = 0.25
"""Changes closer together than this are sent as one."""

BEAT_SECONDS = 5.0
"""How often the clock is sent; the page takes three missed beats for a lost connection."""

RETRY_MILLISECONDS = 1000


class Reader:
    """What one open page has been sent so far."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._snapshot: Snapshot | None = None
        self._parts: dict[str, str] = {}
        self._history: list[RoundResult] | None = None
        self._next_beat = 0.0

    def news(self, snapshot: Snapshot, now: float) -> Iterator[ServerSentEvent]:
        """The events that bring the page from what it has to ``snapshot``."""
        if now >= self._next_beat:
            self._next_beat = now + BEAT_SECONDS
            yield _event("clock", f"{now:.3f}", snapshot)
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        yield from self._changed_parts(snapshot)
        yield from self._new_points(snapshot)

    def _changed_parts(self, snapshot: Snapshot) -> Iterator[ServerSentEvent]:
        for part, html in self._renderer.parts(snapshot).items():
            if self._parts.get(part) != html:
                self._parts[part] = html
                yield _event(part, html, snapshot)

    def _new_points(self, snapshot: Snapshot) -> Iterator[ServerSentEvent]:
        """The first time even if there are none, so that a page from before a restart forgets its curves."""
        history = snapshot.history
        if history != self._history:
            points = curve(history, kept(self._history or [], history))
            self._history = list(history)
            yield _event("history", json.dumps(points, allow_nan=False), snapshot)


def _event(name: str, data: str, snapshot: Snapshot) -> ServerSentEvent:
    return ServerSentEvent(data, event=name, id=str(snapshot.version), retry=RETRY_MILLISECONDS)


async def updates(board: StatusStore, renderer: Renderer, closing: threading.Event) -> AsyncIterator[ServerSentEvent]:
    """All events for one reader, until the reader leaves or the server closes.

    It looks instead of waiting on the board's condition, for which each reader would hold a thread.
    """
    reader = Reader(renderer)
    while not closing.is_set():
        for event in reader.news(board.current, time.time()):
            yield event
        await anyio.sleep(LOOK_SECONDS)
