"""What the transport has delivered to the coordinator, and for how long nothing could arrive."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from typing import Final

from fedquilt_common.wire.connection_log import ConnectionLog
from fedquilt_common.wire.transport import Disconnected, Incoming

LEAST_GAP: Final = 1.0
"""Seconds from which a time without a broker counts, and a wait that lasts too long because the process was frozen."""


class Inbox:
    """The messages that wait, the state of the connection, and the gaps in it.

    Attributes:
        messages: what the transport delivers.
        connected: whether the broker accepts the coordinator now.

    Args:
        log: receives why there is no connection.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.messages: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self.connected = False
        self._connection_log = ConnectionLog(log)
        self._lost_at: float | None = None
        self._gap = 0.0

    def wait(self, seconds: float) -> Incoming | None:
        """Return the next message as soon as there is one; None if none has arrived in this time."""
        end, incoming = time.monotonic() + seconds, None
        with contextlib.suppress(queue.Empty):
            incoming = self.messages.get(timeout=seconds)
        if self.connected:
            self._add_gap(time.monotonic() - end)
        return incoming

    def connect(self) -> None:
        """Note that the broker has accepted the coordinator."""
        self.connected = True
        self._connection_log.note_connected()
        if self._lost_at is not None:
            self._add_gap(time.monotonic() - self._lost_at)
            self._lost_at = None

    def lose(self, lost: Disconnected) -> None:
        """Note that the connection is lost, or that an attempt has failed."""
        self._connection_log.note_lost(lost)
        if self.connected:
            self.connected, self._lost_at = False, time.monotonic()

    def take_gap(self) -> float:
        """Return the seconds in which no message could arrive since the last call."""
        gap, self._gap = self._gap, 0.0
        return gap

    def _add_gap(self, seconds: float) -> None:
        if seconds >= LEAST_GAP:
            self._gap += seconds
