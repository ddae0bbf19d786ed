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
        frame: the id of the frame that the page shows; a page of an unknown frame receives everything.
    """

    def __init__(self, source: FrameSource, frame: str = "") -> None:
        self._source = source
        self._frame: Frame | None = source.find(frame)
        self._next_heartbeat = 0.0

    def events(self, now: float, *, newest: bool = False) -> bytes:
        """Return the events that update the page, and a heartbeat if one is due; empty without any.

        Args:
            now: Unix time in seconds.
            newest: make a new frame even if the last one is fresh.
        """
        before, self._frame = self._frame, self._source.current(newest=newest)
        beat = b""
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            beat = encode_event("clock", f"{now:.3f}")
        return beat if before is self._frame else beat + self._source.encode(before, self._frame)


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
