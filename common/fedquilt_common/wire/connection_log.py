"""Log why there is no connection to the broker, without a line for each attempt."""

from __future__ import annotations

import logging

from fedquilt_common.wire.transport import Disconnected


class ConnectionLog:
    """Logs each reason once until the broker accepts the client again: a transport tries every few seconds.

    Args:
        log: receives the lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._reported: set[str] = set()

    def note_connected(self) -> None:
        """Report every reason again from now on."""
        self._reported.clear()

    def note_lost(self, lost: Disconnected) -> None:
        """Log a lost connection or a failed attempt, unless its reason is known; the transport tries again."""
        if lost.reason not in self._reported:
            self._reported.add(lost.reason)
            self._log.warning("%s. %s; trying again", lost.reason, lost.advice)
