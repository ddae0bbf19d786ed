"""Numbers for people: one unit for all values of a column, and about three significant digits for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fedquilt_common.learning_tasks.metrics import ACCURACY
from fedquilt_server.library.quantities import QUANTITIES, Unit
from fedquilt_server.status.units import DASH, fixed, percentage

CellKind: TypeAlias = Unit | Literal["text", "count", "points"]
"""``points`` are differences of shares, in percentage points."""
DIGITS: Final = 3
"""Significant digits of a number below 1000; a larger one has them all."""
SHARE_DIGITS: Final = 2
_FIXED: Final = (1e-4, 1e15)
"""Numbers outside are written with an exponent."""
_LEAST: Final = 1e-3
"""A smaller unit is chosen if the smallest number of a column would be less than this."""


@dataclass(frozen=True)
class Scale:
    """How the numbers of a column are written: as values of ``kind`` multiplied by ``factor``, in ``symbol``."""

    kind: CellKind = "text"
    factor: float = 1.0
    symbol: str = ""


_STEPS: Final[dict[CellKind, tuple[tuple[float, float, str], ...]]] = {
    "bytes": ((1e12, 1e-12, "TB"), (1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (1e3, 1e-3, "kB"), (0.0, 1.0, "B")),
    "joules": ((1e6, 1e-6, "MJ"), (1e4, 1e-3, "kJ"), (0.0, 1.0, "J")),
    "seconds": ((36_000.0, 1 / 3600, "h"), (0.0, 1.0, "s")),
    "share": ((0.0, 100.0, "%"),),
    "points": ((0.0, 100.0, "points"),),
    "number": ((0.0, 1.0, ""),),
}
"""From which largest value a column has which factor and unit."""


def scale_of(kind: CellKind, values: Sequence[float]) -> Scale:
    """Return the unit in which a column of these values is easy to read: that of the largest, if it suits the rest."""
    known = [abs(value) for value in values if math.isfinite(value)]
    if kind not in _STEPS or (kind not in ("share", "points") and not known):
        return Scale()
    largest, smallest = max(known, default=0.0), min(filter(None, known), default=math.inf)
    possible = [(factor, symbol) for start, factor, symbol in _STEPS[kind] if largest >= start]
    factor, symbol = next((one for one in possible if smallest * one[0] >= _LEAST), possible[-1])
    return Scale(kind, factor, symbol)


def number_text(value: float, scale: Scale) -> str:
    """Return a number in the scale of its column; a dash for one that is not finite."""
    if not math.isfinite(value):
        return DASH
    if scale.kind == "share":
        return percentage(value, SHARE_DIGITS)
    shown = value * scale.factor or 0.0  # no -0
    if scale.kind == "points":
        return fixed(shown if abs(shown) >= 0.005 else 0.0, SHARE_DIGITS)
    if shown and not _FIXED[0] <= abs(shown) < _FIXED[1]:
        return f"{shown:.{DIGITS - 1}e}"
    return fixed(shown, _decimals(shown, scale))


def deviation_text(deviation: float, mean: float, scale: Scale) -> str:
    """Return a deviation with as many decimals as its mean, or with its own if the mean is 0 or has an exponent."""
    text = number_text(mean, scale)
    if not mean or "e" in text or not math.isfinite(deviation):
        return number_text(deviation, scale)
    return fixed(deviation * scale.factor, len(text.partition(".")[2]))


def _decimals(shown: float, scale: Scale) -> int:
    if scale.kind not in _STEPS or not shown:
        return 0
    exponent = int(f"{shown:.{DIGITS - 1}e}".partition("e")[2])  # of the rounded number: 9.996 is 10.0
    return max(0, DIGITS - 1 - exponent)


def score_text(score: str | None, value: float | None) -> str:
    """Return a score, such as "93.42 %" (accuracy), "R2 0.83" or "mAP-50 31.20 %"; a dash for an unknown one."""
    if score is None or value is None:
        return DASH
    quantity = QUANTITIES[score]
    name = "" if score == ACCURACY.name else f"{quantity.heading} "
    return f"{name}{number_text(value, scale_of(quantity.unit, [value]))}{' %' if quantity.unit == 'share' else ''}"
