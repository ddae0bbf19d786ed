"""What the coordinator hears: the messages of its transport, and how long none could arrive."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from typing import Final

from fedquilt_common.wire.connection_log import ConnectionLog
from fedquilt_common.wire.transport import Disconnected, Incoming

LONGEST_OVERSHOOT: Final = 1.0
"""A wait for a message that lasts longer than asked by more than this: the process was frozen."""


class Hearing:
    """The messages that have arrived, and the time without a broker or with a frozen process.

    Attributes:
        inbox: what the transport delivers.
        connected: whether the broker accepts the coordinator now.

    Args:
        log: receives why there is no connection.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self.connected = False
        self._connection_log = ConnectionLog(log)
        self._lost_at: float | None = None
        self._deaf = 0.0

    def wait(self, seconds: float) -> Incoming | None:
        """Return the next message as soon as there is one; None if none has arrived in this time."""
        end, incoming = time.monotonic() + seconds, None
        with contextlib.suppress(queue.Empty):
            incoming = self.inbox.get(timeout=seconds)
        overshoot = time.monotonic() - end
        if self.connected and overshoot > LONGEST_OVERSHOOT:
            self._deaf += overshoot
        return incoming

    def connect(self) -> None:
        """Note that the broker has accepted the coordinator."""
        self.connected = True
        self._connection_log.note_connected()
        if self._lost_at is not None:
            self._deaf += time.monotonic() - self._lost_at
            self._lost_at = None

    def lose(self, lost: Disconnected) -> None:
        """Note that the connection is lost, or that an attempt has failed."""
        self._connection_log.note_lost(lost)
        if self.connected:
            self.connected, self._lost_at = False, time.monotonic()

    def take_deaf_seconds(self) -> float:
        """Return for how long no message could arrive since the last call."""
        seconds, self._deaf = self._deaf, 0.0
        return seconds
