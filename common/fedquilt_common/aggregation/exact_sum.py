"""Sums of fp64 numbers without any rounding, element by element: their order and their grouping do not matter.

Each number is cut at fixed places, the multiples of 32 bits. What lies between two places goes into a bin, whose sum
is a whole number that fp64 holds exactly. So a sum of sums has the bits of the sum of all numbers. ``round`` returns
what ``math.fsum`` returns.

Demmel and Nguyen, "Parallel Reproducible Summation", IEEE Transactions on Computers 2015 (bins); Neal, "Fast Exact
Summation Using Small and Large Superaccumulators", arXiv:1505.05571, 2015 (bins for the whole range of fp64); Shewchuk,
"Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric Predicates", 1997 (the last rounding).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import NotFiniteError, SumOverflowError

BIN_BITS: Final = 32
"""Bin k holds multiples of 2^(32 k)."""
LOWEST_BIN, HIGHEST_BIN = -34, 34
"""Bins that fp64 numbers, and the sums of some billions of them, need."""
_HALF: Final = 1 << (BIN_BITS - 1)
_MOST: Final = 1 << 22
"""Numbers that are added before the carries are propagated: each has at most 2^31 units, and fp64 holds 2^53."""
_LARGE: Final = 2.0**959
"""From here on numbers are scaled down before they are cut, because fp64 could not hold the cutting constant."""
_SCALED_BINS: Final = 4
_HIGHEST_PLAIN: Final = 30
"""Highest bin whose digits can be added in fp64 without an overflow."""

Doubles = NDArray[np.float64]
Wholes = NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """An exact sum as whole numbers of base 2^32; equal sums have equal digits.

    Attributes:
        first: bin of the first row; 0 if there are no rows.
        rows: from -2^31 to 2^31 - 1, int64 of shape (bins, size), lowest bin first; the first and the last row are not
            all zero.
    """

    first: int
    rows: Wholes


class ExactSum:
    """The exact sum of arrays of ``size`` numbers.

    Args:
        size: numbers in each array.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._bins: dict[int, Doubles] = {}
        self._added = 0

    @classmethod
    def from_digits(cls, size: int, digits: Digits) -> ExactSum:
        """Return the sum that has these digits; they may be as large as 2^32 on either side of 0."""
        made = cls(size)
        made._bins = {digits.first + row: units.astype(np.float64) for row, units in enumerate(digits.rows)}
        made._added = 2
        return made

    def add(self, terms: Doubles) -> None:
        """Add arrays.

        Args:
            terms: one array of shape (size,), or several of shape (arrays, size).

        Raises:
            NotFiniteError: a number is infinite or not a number.
        """
        rest = np.array(terms, np.float64, ndmin=2)
        for start in range(0, len(rest), _MOST - 1):
            self._add_rows(rest[start : start + _MOST - 1])

    def add_products(self, values: NDArray[Any], weights: Doubles) -> None:
        """Add ``weights * values``, each product rounded once to fp64.

        Args:
            values: of shape (arrays, size).
            weights: of shape (arrays,).

        Raises:
            NotFiniteError: a product is infinite or not a number.
        """
        with np.errstate(over="ignore"):  # add reports it
            self.add(np.multiply(values, weights[:, None], dtype=np.float64))

    def _add_rows(self, rest: Doubles) -> None:
        most = max(float(rest.max(initial=0.0)), -float(rest.min(initial=0.0)))
        if not most < math.inf:  # also true of NaN
            raise NotFiniteError("a sum has a number that is infinite or not a number")
        self._make_room(len(rest))
        if most < _LARGE:
            return self._cut(rest, most, 0)
        large = np.abs(rest) >= _LARGE
        scaled = np.where(large, rest, 0.0) * 2.0 ** (-BIN_BITS * _SCALED_BINS)
        self._cut(scaled, most * 2.0 ** (-BIN_BITS * _SCALED_BINS), _SCALED_BINS)
        return self._add_rows(np.where(large, 0.0, rest))

    def _make_room(self, numbers: int) -> None:
        if self._added + numbers > _MOST:
            self._carry()
        self._added += numbers

    def _cut(self, rest: Doubles, most: float, shift: int) -> None:
        """Add numbers of at most ``most``, which are 2^(32 shift) times too small; ``rest`` is overwritten."""
        place = math.ceil((math.frexp(most)[1] + 1) / BIN_BITS) - 1
        while most:
            place = max(place, LOWEST_BIN)
            magic = _scale(1.5, BIN_BITS * place + 52)
            whole = rest + magic
            whole -= magic  # rest, rounded to a multiple of 2^(32 place)
            rest -= whole
            self._put(place + shift, _scale(whole.sum(0), -BIN_BITS * place))
            most, place = float(rest.any()), place - 1

    def _put(self, place: int, units: Doubles) -> None:
        if place in self._bins:
            self._bins[place] += units
        else:
            self._bins[place] = units

    def merge(self, other: ExactSum) -> None:
        """Add another sum of arrays of the same size."""
        if other._added + 1 >= _MOST:
            other._carry()
        self._make_room(other._added)
        for place, units in other._bins.items():
            self._put(place, units.copy() if place not in self._bins else units)

    def part(self, start: int, stop: int) -> ExactSum:
        """Return the sums of some of the numbers, of shape (stop - start,)."""
        made = ExactSum(stop - start)
        made._bins = {place: units[start:stop].copy() for place, units in self._bins.items()}
        made._added = self._added
        return made

    @property
    def highest(self) -> int:
        """The highest bin that has been added to."""
        return max(self._bins, default=LOWEST_BIN)

    def _carry(self) -> None:
        """Make the units of each bin smaller than half of a unit of the next one, without a change of the sum."""
        self._added, carry, place = 1, np.zeros(self.size, np.int64), min(self._bins, default=0)
        last = max(self._bins, default=0)
        while place <= last or carry.any():
            units = carry + self._bins[place].astype(np.int64) if place in self._bins else carry
            carry = (units + _HALF) >> BIN_BITS
            self._bins[place] = (units - (carry << BIN_BITS)).astype(np.float64)
            place += 1

    def digits(self) -> Digits:
        """Return the sum in its only form."""
        self._carry()
        used = [place for place, units in self._bins.items() if units.any()]
        if not used:
            return Digits(0, np.zeros((0, self.size), np.int64))
        rows = np.zeros((max(used) - min(used) + 1, self.size), np.int64)
        for place in used:
            rows[place - min(used)] = self._bins[place]
        return Digits(min(used), rows)

    def round(self) -> Doubles:
        """Return the sum, rounded once to the nearest fp64 numbers, ties to even; a zero is positive.

        Raises:
            SumOverflowError: a sum is beyond fp64.
        """
        digits = self.digits()
        beyond = max(0, digits.first + len(digits.rows) - 1 - _HIGHEST_PLAIN)
        plain = digits.rows[: len(digits.rows) - beyond]
        total = _round_digits(digits.first, plain, self.size)
        for at in np.flatnonzero(digits.rows[len(plain) :].any(0)):
            total[at] = _round_large(digits.first, digits.rows[:, at])
        return total


def _round_digits(first: int, rows: Wholes, size: int) -> Doubles:
    """Return the sum of digits, correctly rounded: from the highest one down, as ``math.fsum`` ends."""
    total, error, below = np.zeros(size), np.zeros(size), np.zeros(size)
    for row in range(len(rows) - 1, -1, -1):
        term = _scale(rows[row].astype(np.float64), BIN_BITS * (first + row))
        below = np.where((error != 0) & (below == 0), term, below)
        term = np.where(error == 0, term, 0.0)
        total, error = np.where(error == 0, total + term, total), np.where(error == 0, _error(total, term), error)
    twice = 2 * error
    moved = total + twice
    is_tie = (np.sign(error) * np.sign(below) > 0) & (moved - total == twice)
    return np.where(is_tie, moved, total)  # total is even, but what lies below decides


def _error(one: Doubles, other: Doubles) -> Doubles:
    """Return what the sum of two numbers loses when it is rounded (TwoSum)."""
    total = one + other
    part = total - one
    return (one - (total - part)) + (other - part)


def _round_large(first: int, digits: Wholes) -> float:
    whole = sum(int(digit) << (BIN_BITS * row) for row, digit in enumerate(digits))
    exponent = BIN_BITS * first
    try:
        return float(whole << exponent) if exponent >= 0 else whole / (1 << -exponent)
    except OverflowError:
        raise SumOverflowError("a sum is beyond the largest number of fp64, 1.8e308") from None


def _scale(numbers: Doubles | float, exponent: int) -> Doubles:
    """Return the numbers times 2^exponent; in two steps, because the factor may be beyond fp64."""
    if abs(exponent) < 1000:
        return np.asarray(numbers * 2.0**exponent)
    return np.asarray(numbers * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2))


def components(weights: Sequence[float]) -> list[float]:
    """Return the exact sum of weights as few numbers of fp64, whose order follows from the sum alone.

    Raises:
        NotFiniteError: a weight is infinite or not a number.
    """
    total = ExactSum(1)
    total.add(np.array(weights, np.float64).reshape(-1, 1))
    digits = total.digits()
    numbers = [float(_scale(float(row[0]), BIN_BITS * (digits.first + at))) for at, row in enumerate(digits.rows)]
    return [number for number in numbers if number]
