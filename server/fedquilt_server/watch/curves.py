"""Curves drawn with characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

BLANK: Final = 0x2800
"""The braille pattern without a dot."""
DOTS: Final = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a braille pattern: for the left and the right column, its dots from the bottom to the top."""
ASCII: Final = " _.-*"
"""A column of a plain curve: nothing, then a mark from the bottom to the top of its character."""


def draw_curve(values: Sequence[float], width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """Draw values from left to right, the lowest one at the bottom and the highest one at the top.

    Args:
        values: finite numbers, the latest one last. They are averaged or interpolated to fill the width.
        width: characters of a line.
        height: lines.
        ascii_only: draw with ASCII characters, one column each, instead of braille, with two columns each.

    Returns:
        ``height`` lines of ``width`` characters, the top one first.
    """
    shares = resample(scale(values), width if ascii_only else 2 * width)
    levels = [round((4 * height - 1) * share) for share in shares]
    return _draw_ascii(levels, width, height) if ascii_only else _draw_braille(levels, width, height)


def scale(values: Sequence[float]) -> list[float]:
    """Return each value's place between the lowest one, 0, and the highest one, 1; equal values are in the middle."""
    halves = [value / 2 for value in values]  # no difference is infinite
    low, high = min(halves, default=0.0), max(halves, default=0.0)
    return [(half - low) / (high - low) if low < high else 0.5 for half in halves]


def resample(values: Sequence[float], columns: int) -> list[float]:
    """Return ``columns`` values: means of neighbours if there are more values, points of their lines if fewer."""
    count = len(values)
    if count > columns:
        edges = [count * column // columns for column in range(columns + 1)]
        return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    if count < 2:
        return list(values) * columns
    places = [column * (count - 1) / max(columns - 1, 1) for column in range(columns)]
    return [_between(values, place) for place in places]


def _between(values: Sequence[float], place: float) -> float:
    left = min(int(place), len(values) - 2)
    part = place - left
    return values[left] * (1 - part) + values[left + 1] * part


def _draw_braille(levels: Sequence[int], width: int, height: int) -> list[str]:
    cells = [[BLANK] * width for _ in range(height)]
    for column, level in enumerate(levels):
        before = levels[max(column - 1, 0)]
        for part in range(min(level, before + 1), max(level, before - 1) + 1):  # steep parts have no gaps
            line, dot = divmod(part, 4)
            cells[height - 1 - line][column // 2] |= DOTS[column % 2][dot]
    return ["".join(map(chr, line)) for line in cells]


def _draw_ascii(levels: Sequence[int], width: int, height: int) -> list[str]:
    cells = [[" "] * width for _ in range(height)]
    for column, level in enumerate(levels):
        line, mark = divmod(level, 4)
        cells[height - 1 - line][column] = ASCII[mark + 1]
    return ["".join(line) for line in cells]
