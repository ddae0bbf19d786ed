"""Values for people: short, with units, and a dash for what is not known (never 0 or NaN).

``web/static/units.js`` formats the same values in the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

DASH: Final = "\N{EN DASH}"
"""Stands for a value that is not known."""
_EXACT: Final = Context(prec=400, rounding=ROUND_HALF_UP)
_LARGE: Final = 1e9
_SUM_ERROR: Final = 1e-12
"""Shares that add up to 1 may differ from it by this."""
_MOST_DECIMALS: Final = 6
"""Decimals of a percentage that tell a share from 0 and from 1."""


def is_number(value: float | None) -> bool:
    """Return whether ``value`` is a finite number."""
    return value is not None and math.isfinite(value)


def fixed(value: float, digits: int) -> str:
    """Format a finite number as JavaScript's ``toFixed`` does: the exact value, and halves away from zero."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), context=_EXACT):f}"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number: ``0.123``; a large one that is no count, as the loss of a run that diverges: ``1.830e+19``."""
    if value is None or not is_number(value):
        return DASH
    return f"{value:.3e}" if digits and abs(value) >= _LARGE else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share: 0.934 as ``93.4 %``. Only 0 is ``0 %`` and only 1 is ``100 %``: others get more decimals."""
    return f"{percentage(value, digits)} %" if value is not None and is_number(value) else DASH


def percentage(share: float, digits: int) -> str:
    """Format a share as ``percent`` does, without the sign."""
    if share < 0:
        return f"-{percentage(-share, digits)}"
    if math.isclose(share, 1, rel_tol=_SUM_ERROR):
        share = 1.0
    for decimals in range(digits, _MOST_DECIMALS + 1):
        text = fixed(100 * share, decimals)
        if share in (0, 1) or float(text) not in (0, 100):
            return text
    return "< 0.000001" if share < 0.5 else "> 99.999999"


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
    """Format a size in the first unit in which it is less than ``step`` after rounding."""
    if size is None or not is_number(size):
        return DASH
    for unit in units:
        text = fixed(size, 0) if unit == units[0] else _three_digits(size)
        if abs(float(text)) < step:
            break
        size /= step
    return f"{text} {unit}"


def _three_digits(size: float) -> str:
    """Return one decimal of a number below 100, and none of another one."""
    text = fixed(size, 1)
    return text if abs(float(text)) < 100 else fixed(size, 0)


def duration(seconds: float | None) -> str:
    """Format a duration: ``0.82 s``, ``12.3 s``, ``3 min 20 s``, ``1 h 05 min``."""
    if seconds is None or not is_number(seconds):
        return DASH
    for digits, limit in ((2, 10), (1, 60)):
        text = fixed(seconds, digits)
        if float(text) < limit:
            return f"{text} s"
    return _minutes(int(fixed(seconds, 0)))


def _minutes(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def whole_duration(seconds: float) -> str:
    """Format a duration that changes all the time: without fractions of a second."""
    if not is_number(seconds):
        return DASH
    whole = int(fixed(max(seconds, 0), 0))
    return _minutes(whole) if whole >= 60 else f"{whole} s"


def time_text(at: float | None) -> str | None:
    """Return a Unix time as date and time in UTC; None if it is unknown or impossible."""
    try:
        return None if at is None else datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return None
