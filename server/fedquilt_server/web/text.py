"""Template filters that format values: short, with units, and a dash for an unknown value (never 0 or NaN)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from fedquilt_server.status.waiting import DASH, ranges


def is_number(value: float | None) -> bool:
    """Return whether ``value`` is a finite number."""
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number: ``0.123``."""
    return f"{value:.{digits}f}" if is_number(value) else DASH


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share: 0.934 as ``93.4 %``."""
    return f"{100 * value:.{digits}f} %" if value is not None and is_number(value) else DASH


def count(value: int) -> str:
    """Format a count; 0 means that it is not known yet."""
    return str(value) if value else DASH


def traffic(size: float | None) -> str:
    """Format bytes on the wire, in powers of 1000."""
    return _scaled(size, 1000, ("B", "kB", "MB", "GB", "TB"))


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


def clock(at: float) -> str:
    """Format a Unix time as the time of day in UTC. The page's script converts it to the reader's time zone."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M:%S UTC") if at else DASH


def tally(counts: Mapping[str, int]) -> str:
    """Format ``{"1.0": 4, "0.5": 2}`` as "4 x 1.0, 2 x 0.5" with multiplication signs; lines break at commas only."""
    return (
        ", ".join(
            f"{count}\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}{name}"
            for name, count in counts.items()
        )
        or DASH
    )


FILTERS = {
    "clock": clock,
    "count": count,
    "duration": duration,
    "memory": memory,
    "number": number,
    "percent": percent,
    "ranges": ranges,
    "tally": tally,
    "traffic": traffic,
}
