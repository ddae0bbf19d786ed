"""Decide when a process that is restarted each time it ends is given up, on this machine or on a node. Pure."""

from __future__ import annotations

import signal
from typing import Final

from fedquilt_common.process.signals import STOPPED_CODES

SHORT_LIFE: Final = 30.0
"""A process that exits with an error in fewer seconds has failed to start. One that was killed has not."""
SAME_ERROR_LIFE: Final = 600.0
"""A process that exits with the same error as the one before it, in fewer seconds, has failed to start, too: it would
do so for ever."""
FAILED_STARTS: Final = 4
"""Failed starts in a row after which a process is given up."""
KILLED_CODES: Final = frozenset({0, -signal.SIGKILL, -signal.SIGTERM}) | STOPPED_CODES
"""Exit codes that do not count as a failed start: success, and signals from other processes."""


class FailedStarts:
    """The failed starts in a row of a process and of those that were started in its place."""

    def __init__(self) -> None:
        self._count = 0
        self._error = ""

    @property
    def are_too_many(self) -> bool:
        """Whether another start would only fail again."""
        return self._count >= FAILED_STARTS

    def add_end(self, code: int, seconds: float, error: str) -> bool:
        """Count the end of the process; returns whether it has failed to start.

        Args:
            code: its exit code; a negative one names the signal that ended it.
            seconds: how long it has run.
            error: the error that it printed last; empty: none.
        """
        is_killed = code in KILLED_CODES
        before, self._error = self._error, "" if is_killed else error
        limit = SAME_ERROR_LIFE if self._error and self._error == before else SHORT_LIFE
        failed = not is_killed and seconds < limit
        self._count = self._count + 1 if failed else 0
        return failed
