"""Unix time that never jumps: a workstation or board whose clock is set during a run must not miss its deadlines."""

from __future__ import annotations

import time

_WALL, _STEADY = time.time(), time.monotonic()


def now() -> float:
    """Unix time in seconds as it was when this process began, plus what has passed since."""
    return _WALL + (time.monotonic() - _STEADY)
