"""The event stream of the page: sends the changes, a few times a second at most."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.connections import EVENT_STREAM
from fedquilt_server.web.fragments import Renderer
from fedquilt_server.web.view import count_unchanged, curve_points

POLL_SECONDS = 0.25
"""Time between two checks of the snapshot. Changes within this time are sent as one."""

HEARTBEAT_SECONDS = 5.0
"""Time between two events with the server's clock. The page shows a lost connection after three missed heartbeats."""

RETRY_MILLISECONDS = 1000
BUSY_SECONDS = 5


class EventStreams:
    """The number of open event streams, and its bound: each stream holds its connection without end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0


class BoundedEventStream(EventSourceResponse):
    """An event stream that counts as one of ``streams``, or status 503 if there are too many.

    The ``send_timeout`` of the library is not used: after it, uvicorn waits without end for the visitor to take the
    rest. ``PageConnection`` drops such a visitor instead.
    """

    def __init__(self, content: AsyncIterator[bytes], streams: EventStreams) -> None:
        super().__init__(content)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until the visitor leaves or the server closes."""
        if self._streams.open >= self._streams.most:
            await _TOO_MANY(scope, receive, send)
            return
        scope.setdefault("state", {})[EVENT_STREAM] = True
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


_TOO_MANY = PlainTextResponse(
    "Too many pages are open. Close one of them.\n", 503, headers={"Retry-After": str(BUSY_SECONDS)}
)


class Reader:
    """One open page, and what it has received so far."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._snapshot: Snapshot | None = None
        self._parts: dict[str, str] = {}
        self._history: list[RoundResult] | None = None
        self._next_heartbeat = 0.0

    def events(self, snapshot: Snapshot, now: float) -> Iterator[bytes]:
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

    def _part_events(self, snapshot: Snapshot) -> Iterator[bytes]:
        for part, html in self._renderer.parts(snapshot).items():
            if self._parts.get(part) != html:
                self._parts[part] = html
                yield _event(part, html, snapshot)

    def _curve_events(self, snapshot: Snapshot) -> Iterator[bytes]:
        """Yield the new points of the curves.

        The first call yields an event even without points, so that a page from before a restart clears its curves.
        """
        history = snapshot.history
        if history != self._history:
            points = curve_points(history, count_unchanged(self._history or [], history))
            self._history = list(history)
            yield _event("history", json.dumps(points, allow_nan=False), snapshot)


def _event(name: str, data: str, snapshot: Snapshot) -> bytes:
    return _encode(name, data, snapshot.version)


@lru_cache(maxsize=64)
def _encode(name: str, data: str, version: int) -> bytes:
    """Encode an event, once for all readers."""
    return ServerSentEvent(data, event=name, id=str(version), retry=RETRY_MILLISECONDS).encode()


async def stream_updates(store: StatusStore, renderer: Renderer, closing: threading.Event) -> AsyncIterator[bytes]:
    """Yield all events for one reader, until the reader disconnects or the server closes.

    It polls the store, because waiting for a change would need a thread per reader.
    """
    reader, closed = Reader(renderer), False
    while not closed:
        closed = closing.is_set()  # the last events show how the run ended
        if events := b"".join(reader.events(store.current, time.time())):
            yield events
        if not closed:
            await anyio.sleep(POLL_SECONDS)
