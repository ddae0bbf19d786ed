"""Leaving in order when a person or systemd asks for it."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """Becomes true at the first SIGINT or SIGTERM; ``exit_code`` is what a shell expects then."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number:  # asked twice: leave at once
            raise KeyboardInterrupt
        self.number = number

    def __call__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        return 128 + self.number if self.number else 0
