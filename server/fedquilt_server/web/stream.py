"""The event stream of the page: sends the changes, a few times a second at most."""

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
from fedquilt_server.web.view import count_unchanged, curve_points

POLL_SECONDS = 0.25
"""Time between two checks of the snapshot. Changes within this time are sent as one."""

HEARTBEAT_SECONDS = 5.0
"""Time between two events with the server's clock. The page shows a lost connection after three missed heartbeats."""

RETRY_MILLISECONDS = 1000


class Reader:
    """One open page, and what it has received so far."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._snapshot: Snapshot | None = None
        self._parts: dict[str, str] = {}
        self._history: list[RoundResult] | None = None
        self._next_heartbeat = 0.0

    def events(self, snapshot: Snapshot, now: float) -> Iterator[ServerSentEvent]:
        """Yield the events that update the page to ``snapshot``, and a heartbeat if one is due.

        Args:
            snapshot: the latest snapshot.
            now: Unix time in seconds.
        """
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            yield _event("clock", f"{now:.3f}", snapshot)
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        yield from self._part_events(snapshot)
        yield from self._curve_events(snapshot)

    def _part_events(self, snapshot: Snapshot) -> Iterator[ServerSentEvent]:
        for part, html in self._renderer.parts(snapshot).items():
            if self._parts.get(part) != html:
                self._parts[part] = html
                yield _event(part, html, snapshot)

    def _curve_events(self, snapshot: Snapshot) -> Iterator[ServerSentEvent]:
        """Yield the new points of the curves.

        The first call yields an event even without points, so that a page from before a restart clears its curves.
        """
        history = snapshot.history
        if history != self._history:
            points = curve_points(history, count_unchanged(self._history or [], history))
            self._history = list(history)
            yield _event("history", json.dumps(points, allow_nan=False), snapshot)


def _event(name: str, data: str, snapshot: Snapshot) -> ServerSentEvent:
    return ServerSentEvent(data, event=name, id=str(snapshot.version), retry=RETRY_MILLISECONDS)


async def stream_updates(
    store: StatusStore, renderer: Renderer, closing: threading.Event
) -> AsyncIterator[ServerSentEvent]:
    """Yield all events for one reader, until the reader disconnects or the server closes.

    It polls the store, because waiting for a change would need a thread per reader.
    """
    reader = Reader(renderer)
    while not closing.is_set():
        for event in reader.events(store.current, time.time()):
            yield event
        await anyio.sleep(POLL_SECONDS)
