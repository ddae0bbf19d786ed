"""Counts the bytes at the coordinator's socket since the run began, restarts included."""

from __future__ import annotations

from collections.abc import Callable

from fedquilt_server.runs.journal import Journal, Traffic

SocketBytes = Callable[[], tuple[int, int]]
"""Returns the bytes (sent, received) of the current connection's socket."""


class TrafficMeter:
    """Adds the bytes of this process to those that the journal stores of earlier ones."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._before = journal.traffic()
        self._socket: SocketBytes = lambda: (0, 0)

    def watch(self, socket: SocketBytes) -> None:
        """Count the bytes of ``socket`` from now on."""
        self._socket = socket

    def read(self) -> Traffic:
        """Return the bytes since the run began."""
        down, up = self._socket()
        return Traffic(self._before.down + down, self._before.up + up)

    def save(self) -> None:
        """Store the counters now: the next event may come much later."""
        self._journal.note_traffic(self.read())
