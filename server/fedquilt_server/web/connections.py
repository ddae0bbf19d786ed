"""The page's connections: bounded in number and in time, so that no visitor can take the run's resources.

uvicorn accepts any number of connections and waits for a request without end. ``PageConnection`` adds the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterable
from typing import Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 256
HEAD_SECONDS: Final = 10.0
"""A request's head must be complete this long after its connection, or its first byte on an idle connection."""
RESPONSE_SECONDS: Final = 30.0
"""A visitor must have taken a response this long after the request. Event streams and downloads have no such limit."""
STALL_SECONDS: Final = 10.0
"""A visitor that leaves more than the buffers hold for this long is dropped, even from an event stream."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes that the kernel holds for one visitor. Without a limit, it holds up to 4 MB for each that does not read.

It must hold two of the largest segments, those of a loopback interface: the visitor's system delays the acknowledgement
of a single one by 40 ms, and with 32 KiB a download on the same machine has 2 MB/s.
"""
LONG_RESPONSE: Final = "long_response"
"""Key in the request's state, set for a response that may take longer than ``RESPONSE_SECONDS``."""
_numbers = itertools.count()


def connection_limit(file_limit: int) -> int:
    """Return how many connections the page may hold in a process that may have ``file_limit`` files open.

    It is a quarter of them. asyncio accepts ``accept_backlog`` connections at a time and needs up to four turns until
    a surplus connection is closed, so that the page opens half of the files at most. The run has the other half.
    """
    return max(4, min(MOST_CONNECTIONS, file_limit // 4))


def accept_backlog(connections: int) -> int:
    """Return how many connections asyncio may accept at a time."""
    return max(1, connections // 4)


class PageConnection(H11Protocol):
    """One visitor's connection. ``limit_concurrency`` of uvicorn's configuration bounds their number.

    At the bound, a new visitor takes the place of the connection that has waited longest for its visitor. uvicorn
    itself would send 503 to everyone.
    """

    dropped = False
    _idle = False
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the visitor, and close another connection if there are too many."""
        super().connection_made(transport)
        self.number = next(_numbers)
        most, self.limit_concurrency = self.limit_concurrency, None
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._set_deadline(HEAD_SECONDS)
        present = [each for each in cast("Iterable[PageConnection]", self.connections) if not each.dropped]
        if most is not None and len(present) > most:
            choose_surplus(present, self).drop()

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the visitor."""
        if self._idle:
            self._idle = False
            self._set_deadline(HEAD_SECONDS)
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # uvicorn tries to send 400 in the middle of a response
            self.drop()

    def handle_events(self) -> None:
        """Begin to answer each request that is complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._idle = False
            self._set_deadline(RESPONSE_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, for as long as uvicorn's ``timeout_keep_alive``."""
        self._idle = True
        if self.transport.get_write_buffer_size() == 0:
            self._set_deadline(None)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait until the visitor takes what is sent."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """Send on."""
        super().resume_writing()
        self._end_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._set_deadline(None)
        self._end_stall()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection because the server ends: at once if the page waits for the visitor."""
        if self.waits_for_visitor:
            self.drop()
        else:
            super().shutdown()

    @property
    def waits_for_visitor(self) -> bool:
        """Whether the page waits for a request of the visitor, or until the visitor takes a response."""
        return not self._is_answering or self.flow.write_paused

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def drop(self) -> None:
        """Close the connection at once, without what is still to be sent."""
        self.dropped = True
        self.transport.abort()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if not (self._is_answering and LONG_RESPONSE in self.cycle.scope["state"]):
            self.drop()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def choose_surplus(present: Iterable[PageConnection], newest: PageConnection) -> PageConnection:
    """Choose the connection to close: the oldest for whose visitor the page waits, or ``newest`` if all are busy."""
    waiting = [each for each in present if each.waits_for_visitor and each is not newest]
    return min(waiting, key=lambda each: each.number, default=newest)
