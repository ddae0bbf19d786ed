"""What is under way to the broker and what waits here, counted, so that neither becomes too much."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may wait for the broker's acknowledgement before ``publish`` waits."""


class Window:
    """Counts what is under way to the broker and makes senders wait while it is too much."""

    def __init__(self, limit_bytes: int, limit_messages: int) -> None:
        self._limits = limit_bytes, limit_messages
        self._changed = threading.Condition()
        self._sizes: dict[int, int] = {}
        self._early: set[int] = set()
        self._bytes = self._messages = 0
        self.open = False
        self.waiting = 0
        """Threads that wait for the broker's acknowledgements, which must therefore be read."""

    def set_open(self, is_open: bool) -> None:
        with self._changed:
            self.open = is_open
            self._changed.notify_all()

    def reserve(self, size: int) -> bool:
        """Wait for room and take it; False when the connection is closed."""
        with self._changed:
            self._wait(lambda: not self.open or self._has_room(size))
            if self.open:
                self._bytes += size
                self._messages += 1
            return self.open

    def _has_room(self, size: int) -> bool:
        limit_bytes, limit_messages = self._limits
        return not self._messages or (self._bytes + size <= limit_bytes and self._messages < limit_messages)

    def sent(self, mid: int, size: int) -> None:
        """Tie a reservation to a packet; its acknowledgement may already have come."""
        with self._changed:
            if mid in self._early:
                self._early.discard(mid)
                self._release(size)
            else:
                self._sizes[mid] = size

    def acknowledged(self, mid: int) -> None:
        with self._changed:
            if mid in self._sizes:
                self._release(self._sizes.pop(mid))
            else:
                self._early.add(mid)

    def _release(self, size: int) -> None:
        self._bytes -= size
        self._messages -= 1
        self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        with self._changed:
            self._wait(lambda: not self.open or not self._messages, timeout)
            return not self._messages

    def _wait(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        self.waiting += 1
        try:
            self._changed.wait_for(condition, timeout)
        finally:
            self.waiting -= 1


class Intake:
    """Counts what has come and is not yet dealt with."""

    def __init__(self, limit_bytes: int, limit_messages: int) -> None:
        self._limits = limit_bytes, limit_messages
        self._lock = threading.Lock()
        self._bytes = self._messages = 0

    def hold(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            self._messages += 1

    def let_go(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
            self._messages -= 1

    @property
    def is_full(self) -> bool:
        limit_bytes, limit_messages = self._limits
        return self._bytes >= limit_bytes or self._messages >= limit_messages
