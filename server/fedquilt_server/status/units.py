"""Values for people: short, with units, and a dash for what is not known (never 0 or NaN)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

DASH: Final = "\N{EN DASH}"
"""Stands for a value that is not known."""


def is_number(value: float | None) -> bool:
    """Return whether ``value`` is a finite number."""
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number: ``0.123``."""
    return f"{value:.{digits}f}" if is_number(value) else DASH


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share: 0.934 as ``93.4 %``."""
    return f"{100 * value:.{digits}f} %" if value is not None and is_number(value) else DASH


def traffic(size: float | None) -> str:
    """Format bytes on the wire, in powers of 1000."""
    return _scaled(size, 1000, ("B", "kB", "MB", "GB", "TB"))


def energy(joules: float | None) -> str:
    """Format an energy: ``312 J``, ``4.1 kJ``."""
    return _scaled(joules, 1000, ("J", "kJ", "MJ", "GJ"))


def memory(size: float | None) -> str:
    """Format bytes of memory, in powers of 1024; 0 means that the board has not reported its memory."""
    return _scaled(size or None, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _scaled(size: float | None, step: int, units: Sequence[str]) -> str:
    if size is None or not is_number(size):
        return DASH
    power = 0
    while size >= step and power < len(units) - 1:
        size, power = size / step, power + 1
    digits = 0 if power == 0 or size >= 100 else 1
    return f"{size:.{digits}f} {units[power]}"


def duration(seconds: float | None) -> str:
    """Format a duration: ``0.82 s``, ``12.3 s``, ``3 min 20 s``, ``1 h 05 min``."""
    if seconds is None or not is_number(seconds):
        return DASH
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def whole_duration(seconds: float) -> str:
    """Format a duration that changes all the time: without fractions of a second."""
    return duration(seconds) if seconds >= 60 else f"{max(seconds, 0):.0f} s"


def time_text(at: float | None) -> str | None:
    """Return a Unix time as date and time in UTC; None if it is unknown or impossible."""
    try:
        return None if at is None else datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return None
