"""Limits on what is sent and not yet acknowledged, and on what is received and not yet processed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may be sent and not yet acknowledged before ``publish`` waits."""
STEP_SECONDS: Final = 0.25
"""Time between two questions of a sender that waits whether the process stops."""


class Window:
    """Counts what is sent and not yet acknowledged; senders wait while it is at a limit.

    Args:
        limit_bytes: most bytes; a single larger message may be sent alone.
        limit_messages: most messages.
        should_stop: returns whether senders wait no longer, because the process stops.
    """

    def __init__(self, limit_bytes: int, limit_messages: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._limits = limit_bytes, limit_messages
        self._should_stop = should_stop
        self._changed = threading.Condition()
        self._sizes: dict[int, int] = {}
        self._early: set[int] = set()
        self._bytes = self._messages = 0
        self.open = False
        self.waiting = 0
        """Threads that wait for acknowledgements of the broker, which must be read for them to continue."""

    def set_open(self, is_open: bool) -> None:
        """Open or close the window; senders do not wait for a closed one."""
        with self._changed:
            self.open = is_open
            self._changed.notify_all()

    def reserve(self, size: int) -> bool:
        """Wait for room and reserve it; False if the connection is closed, or the process stops and there is none."""
        with self._changed:
            while self.open and not self._has_room(size) and not self._should_stop():
                self._wait(lambda: not self.open or self._has_room(size), STEP_SECONDS)
            if reserved := self.open and self._has_room(size):
                self._bytes += size
                self._messages += 1
            return reserved

    def _has_room(self, size: int) -> bool:
        limit_bytes, limit_messages = self._limits
        return not self._messages or (self._bytes + size <= limit_bytes and self._messages < limit_messages)

    def register(self, mid: int, size: int) -> None:
        """Assign a reservation to the packet ``mid``, which may be acknowledged already."""
        with self._changed:
            if mid in self._early:
                self._early.discard(mid)
                self._release(size)
            else:
                self._sizes[mid] = size

    def acknowledge(self, mid: int) -> None:
        """Release the reservation of the packet ``mid``."""
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
        """Wait until everything is acknowledged; False after ``timeout`` seconds, or if the connection is closed."""
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
    """Counts what is received and not yet processed.

    Args:
        limit_bytes: bytes from which it is full.
        limit_messages: messages from which it is full.
    """

    def __init__(self, limit_bytes: int, limit_messages: int) -> None:
        self._limits = limit_bytes, limit_messages
        self._lock = threading.Lock()
        self._bytes = self._messages = 0

    def hold(self, size: int) -> Held:
        """Count a message that arrived, until it ends."""
        self.count(size, 1)
        return Held(self, size)

    def count(self, size: int, messages: int) -> None:
        """Add to what is counted; negative numbers take away."""
        with self._lock:
            self._bytes += size
            self._messages += messages

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        limit_bytes, limit_messages = self._limits
        return self._bytes >= limit_bytes or self._messages >= limit_messages


class Held:
    """A message that an intake counts; for one thread."""

    __slots__ = ("_intake", "_size")

    def __init__(self, intake: Intake, size: int) -> None:
        self._intake = intake
        self._size = size

    def free(self) -> None:
        """Stop counting its bytes, which nobody uses any more."""
        self._intake.count(-self._size, 0)
        self._size = 0

    def end(self) -> None:
        """Stop counting it."""
        self._intake.count(-self._size, -1)
        self._size = 0
