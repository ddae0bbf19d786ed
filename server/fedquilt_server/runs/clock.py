"""Unix time that never jumps, so that setting the machine's clock during a run does not shift its deadlines."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class _Moment:
    """One moment, as Unix time and on the monotonic clock."""

    wall: float
    steady: float


_ORIGIN = _Moment(time.time(), time.monotonic())


def now() -> float:
    """Return the Unix time in seconds at which this process began plus the seconds since then."""
    return _ORIGIN.wall + (time.monotonic() - _ORIGIN.steady)


def continue_from(at: float) -> float:
    """Let ``now`` go on from a moment of an earlier process if the machine's clock is behind it.

    A board without a clock battery starts with an old date. Its run would otherwise take negative times.

    Args:
        at: Unix time in seconds.

    Returns:
        The seconds by which the clock is behind; 0 if it is not.
    """
    behind = max(0.0, at - now())
    _ORIGIN.wall += behind
    return behind
