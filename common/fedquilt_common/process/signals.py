"""Stop a process in an orderly way when a person, systemd or a closed terminal asks for it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED_CODES: Final = frozenset(128 + number for number in STOP_SIGNALS)
"""Exit codes of a process that one of the signals has stopped."""


class EarlyInterrupt:
    """Handles SIGINT until a command does: raises KeyboardInterrupt, and remembers it.

    Modules that are written in other languages may swallow the exception, or turn it into one of their own, while they
    are imported.

    Attributes:
        arrived: whether SIGINT has arrived.
    """

    def __init__(self) -> None:
        self.arrived = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal."""
        self.arrived = True
        raise KeyboardInterrupt


def remember_interrupts() -> None:
    """Handle SIGINT with ``EarlyInterrupt``, unless this process was started to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, EarlyInterrupt())


def is_interrupted() -> bool:
    """Whether SIGINT has arrived before a command handles it."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, EarlyInterrupt) and handler.arrived


class StopSignal:
    """Handles SIGINT, SIGTERM and SIGHUP from its creation on; calling it returns whether one has arrived.

    A SIGINT that ``EarlyInterrupt`` remembers counts.

    A second SIGINT or SIGTERM raises KeyboardInterrupt. A second SIGHUP does not: the shell and the system both send
    one when a terminal closes. If the process was started with SIGHUP ignored, as by ``nohup``, SIGHUP stays ignored.
    """

    def __init__(self) -> None:
        self.number = int(signal.SIGINT) if is_interrupted() else 0
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._record)

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self.number and number != signal.SIGHUP:  # stop at once
            raise KeyboardInterrupt
        self.number = self.number or number

    def __call__(self) -> bool:
        """Whether a signal has arrived."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect after the signal; 0 without one."""
        return 128 + self.number if self.number else 0
