"""Numbers for people: one unit and one number of decimals for all values of a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fedquilt_common.learning_tasks.metrics import ACCURACY
from fedquilt_server.library.quantities import QUANTITIES, Unit
from fedquilt_server.status.units import DASH

CellKind: TypeAlias = Unit | Literal["text", "count"]
DIGITS: Final = 3
"""Significant digits of the largest number of a column."""
_MOST_DIGITS: Final = 6
_FIXED_LIMIT: Final = 1e15
"""Numbers from here on are written with an exponent."""


@dataclass(frozen=True)
class Scale:
    """How the numbers of a column are written: multiplied by ``factor``, in ``symbol``, with ``digits`` decimals."""

    factor: float = 1.0
    symbol: str = ""
    digits: int = 0


_STEPS: Final[dict[CellKind, tuple[tuple[float, float, str], ...]]] = {
    "bytes": ((1e12, 1e-12, "TB"), (1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (1e3, 1e-3, "kB"), (0.0, 1.0, "B")),
    "joules": ((1e6, 1e-6, "MJ"), (1e4, 1e-3, "kJ"), (0.0, 1.0, "J")),
    "seconds": ((36_000.0, 1 / 3600, "h"), (0.0, 1.0, "s")),
    "share": ((0.0, 100.0, "%"),),
    "number": ((0.0, 1.0, ""),),
}
"""From which largest value a column has which factor and unit."""


def scale_of(kind: CellKind, values: Sequence[float]) -> Scale:
    """Return the unit and the decimals with which a column of these values is easy to read."""
    if kind not in _STEPS:
        return Scale()
    if kind != "share" and not any(map(math.isfinite, values)):
        return Scale()
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    factor, symbol = next((factor, symbol) for start, factor, symbol in _STEPS[kind] if largest >= start)
    if kind == "share":
        return Scale(factor, symbol, 2)
    shown = largest * factor
    digits = DIGITS - 1 - math.floor(math.log10(shown)) if shown > 0 else 0
    return Scale(factor, symbol, min(max(digits, 0), _MOST_DIGITS))


def number_text(value: float, scale: Scale) -> str:
    """Return a number in the scale of its column; a dash for one that is not finite."""
    if not math.isfinite(value):
        return DASH
    shown = value * scale.factor
    text = f"{shown:.{scale.digits}f}" if abs(shown) < _FIXED_LIMIT else f"{shown:.3e}"
    return "0" + text[2:] if text.startswith("-0") and not float(text) else text


def score_text(score: str | None, value: float | None) -> str:
    """Return a score, such as "93.42 %" (accuracy), "R2 0.83" or "mAP-50 31.20 %"; a dash for an unknown one."""
    if score is None or value is None:
        return DASH
    quantity = QUANTITIES[score]
    name = "" if score == ACCURACY.name else f"{quantity.heading} "
    return f"{name}{number_text(value, scale_of(quantity.unit, [value]))}{' %' if quantity.unit == 'share' else ''}"
