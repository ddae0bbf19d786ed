"""Unix time that never jumps, so that setting the machine's clock during a run does not shift its deadlines."""

from __future__ import annotations

import time

_WALL, _STEADY = time.time(), time.monotonic()


def now() -> float:
    """Return the Unix time in seconds at which this process began plus the seconds since then."""
    return _WALL + (time.monotonic() - _STEADY)
