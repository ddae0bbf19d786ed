"""Stop a process in an orderly way when a person or systemd asks for it."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """Handles SIGINT and SIGTERM from its creation on; calling it returns whether one has arrived.

    A second signal raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._record)

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self.number:  # the second signal: stop at once
            raise KeyboardInterrupt
        self.number = number

    def __call__(self) -> bool:
        """Whether a signal has arrived."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect after the signal; 0 without one."""
        return 128 + self.number if self.number else 0
