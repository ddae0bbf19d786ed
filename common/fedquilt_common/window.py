"""What is under way to the broker, counted, so that senders wait while it is too much."""

from __future__ import annotations

import threading


class Window:
    """Counts what is under way to the broker and makes senders wait while it is too much."""

    def __init__(self, limit_bytes: int, limit_messages: int) -> None:
        self._limits = limit_bytes, limit_messages
        self._changed = threading.Condition()
        self._sizes: dict[int, int] = {}
        self._early: set[int] = set()
        self._bytes = self._messages = 0
        self.open = False

    def set_open(self, is_open: bool) -> None:
        with self._changed:
            self.open = is_open
            self._changed.notify_all()

    def reserve(self, size: int) -> bool:
        """Wait for room and take it; False when the connection is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self.open or self._has_room(size))
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
            self._changed.wait_for(lambda: not self.open or not self._messages, timeout)
            return not self._messages
