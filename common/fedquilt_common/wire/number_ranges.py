"""Lists of clients in a few characters: consecutive numbers become a range, so 400,000 clients fit into any packet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_SHORTEST: Final = 16
"""Shortest run of consecutive numbers that becomes a range; shorter lists stay as earlier versions read them."""
PackedNumbers = list[int | list[int]]
"""Numbers, and ranges as [first, last]."""
NUMBERS: Final = 1_000_000
"""Clients have numbers below this."""
_RANGE: Final = re.compile(rb"\[\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\]")


def pack_numbers(numbers: Sequence[int]) -> PackedNumbers:
    """Return numbers in their order, with a pair for each long run of consecutive ones."""
    packed: PackedNumbers = []
    start = 0
    for end in range(1, len(numbers) + 1):
        if end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            continue
        run = numbers[start:end]
        packed.extend([[run[0], run[-1]]] if len(run) >= _SHORTEST else run)
        start = end
    return packed


def count_in_ranges(text: bytes) -> int:
    """Return how many numbers the ranges of a JSON text have together; reading it costs that much.

    Args:
        text: the JSON; it may be invalid.
    """
    ends = ((int(first), int(last)) for first, last in _RANGE.findall(text))
    return sum(last - first + 1 for first, last in ends if first <= last < NUMBERS)


def unpack_numbers(packed: Iterable[object], most: int | None = None) -> list[int]:
    """Return the numbers that ``pack_numbers`` packed.

    Args:
        packed: numbers, and ranges as [first, last].
        most: largest length of the result; None: any, for what this program wrote itself.

    Raises:
        ValueError: an entry is neither a number nor a range, or there are more numbers.
    """
    numbers: list[int] = []
    for entry in packed:
        first, last = _read_entry(entry)
        if most is not None and len(numbers) + last - first + 1 > most:
            raise ValueError(f"more than {most} numbers")
        numbers.extend(range(first, last + 1))
    return numbers


def _read_entry(entry: object) -> tuple[int, int]:
    match entry:
        case int() if not isinstance(entry, bool):
            return entry, entry
        case [int() as first, int() as last] if type(first) is type(last) is int and 0 <= first <= last < NUMBERS:
            return first, last
    raise ValueError(f"{entry!r} is neither a number nor a range [first, last], from 0 and less than {NUMBERS}")
