"""When a program without a live display names the clients that its run waits for."""

from __future__ import annotations

from typing import Final

from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.waiting import describe_waiting

CONNECT_SECONDS: Final = 5.0
"""Seconds without a change after which the terminal names the clients that have not connected."""
REPLY_SECONDS: Final = 60.0
"""Seconds without a change after which the terminal names the clients that have not replied, once per exchange."""
LONGEST: Final = 500
"""Characters of a line; clients that do not fit are counted."""


class WaitReporter:
    """Decides when to name the clients that a run waits for."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0
        self._reported: object = None

    def check(self, snapshot: Snapshot, now: float) -> str:
        """Return the line to print, or an empty string. ``now``: monotonic seconds."""
        before_round, message = snapshot.phase == "waiting", describe_waiting(snapshot, LONGEST)
        exchange = snapshot.round, snapshot.exchange, before_round
        if self._seen != (exchange, message):
            self._seen, self._since = (exchange, message), now
        # Within an exchange, the clients that have not replied change all the time: report them only once.
        report = exchange, message if before_round else ""
        patience = CONNECT_SECONDS if before_round else REPLY_SECONDS
        if not message or report == self._reported or now - self._since < patience:
            return ""
        self._reported = report
        return message if before_round else f"{message} in round {snapshot.round}"
