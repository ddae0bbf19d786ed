"""The event stream of the page: sends what changed, a few times a second at most.

A reader that reads slowly skips frames: it then receives the difference to the newest frame, never a queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from typing import Final

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from fedquilt_server.status.snapshot import ENDED, Snapshot
from fedquilt_server.web.frames import FRAME_SECONDS, Frame, FrameSource, encode_event
from fedquilt_server.web.long_responses import LongResponses

HEARTBEAT_SECONDS: Final = 5.0
"""Time between two events with the server's clock. The page shows a lost connection after three missed heartbeats."""


class BoundedEventStream(EventSourceResponse):
    """An event stream that counts as one of the long responses.

    The ``send_timeout`` of the library is not used: after it, uvicorn waits without end for the visitor to take the
    rest. ``PageConnection`` drops such a visitor instead.
    """

    def __init__(self, content: AsyncIterator[bytes], bound: LongResponses) -> None:
        super().__init__(content)
        self._bound = bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until the visitor leaves or the server closes."""
        await self._bound.send(super().__call__, scope, receive, send)


class Reader:
    """One open page, and the frame that it shows.

    Args:
        source: makes the frames.
        frame: the id of the frame that the page shows; a page of an unknown frame receives everything. It keeps what it
            shows while the coordinator is starting: a coordinator that was killed has nothing to show until it resumes.
    """

    def __init__(self, source: FrameSource, frame: str = "") -> None:
        self._source = source
        self._frame: Frame | None = source.find(frame)
        self._keeps_state = bool(frame) and self._frame is None
        self._next_heartbeat = 0.0

    def events(self, now: float, *, newest: bool = False) -> bytes:
        """Return the events that update the page, and a heartbeat if one is due; empty without any.

        Args:
            now: Unix time in seconds.
            newest: make a new frame even if the last one is fresh.
        """
        current = self._source.current(newest=newest)
        if self._keeps_state and not newest and is_starting(current.snapshot):
            return self._beat("starting", now)
        self._keeps_state = False
        before, self._frame = self._frame, current
        beat = self._beat("clock", now)
        return beat if before is current else beat + self._source.encode(before, current)

    def _beat(self, event: str, now: float) -> bytes:
        """Return a heartbeat with the server's clock if one is due."""
        if now < self._next_heartbeat:
            return b""
        self._next_heartbeat = now + HEARTBEAT_SECONDS
        return encode_event(event, f"{now:.3f}")


def is_starting(snapshot: Snapshot) -> bool:
    """Return whether the coordinator has not loaded its run yet."""
    return not (snapshot.run or snapshot.recorded or snapshot.phase in ENDED)


async def stream_updates(source: FrameSource, frame: str, closing: threading.Event) -> AsyncIterator[bytes]:
    """Yield all events for one reader, until the reader disconnects or the server closes.

    It polls the source, because waiting for a change would need a thread per reader.
    """
    reader, closed = Reader(source, frame), False
    while not closed:
        closed = closing.is_set()  # the last events show how the run ended
        if events := reader.events(time.time(), newest=closed):
            yield events
        if not closed:
            await anyio.sleep(FRAME_SECONDS)
