"""Fixed-point numbers: their sums are exact, so masks leave no trace and the order of clients does not matter."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError

FRACTION_BITS: Final = 32
"""Binary digits behind the point; the number before them has a sign and 31 digits, in the sum of all clients."""
WHOLE_FRACTION_BITS: Final = 8
"""The same for arrays of integers, such as a norm layer's step counter: only the weight has a fraction, and the numbers
can be large."""


def to_fixed(name: str, values: NDArray[Any], weight: float, clients: int) -> NDArray[np.int64]:
    """Return weighted numbers in fixed point, rounded to the nearest, in a contiguous array.

    Args:
        name: of the array, for errors.
        values: floats or integers of any shape.
        weight: of the client.
        clients: number of clients whose numbers can be added without overflow.

    Raises:
        PayloadError: a number is not finite, or too large.
    """
    bits = fraction_bits(values.dtype)
    products = np.asarray(values, np.float64) * weight
    limit = 2.0 ** (63 - bits) / clients
    if not bool((np.abs(products) < limit).all()):
        raise PayloadError(
            f"a number of array {name!r}, times the reply's weight, is not finite or not below {limit:g}, so a sum of "
            f"{clients} clients cannot hide it. If the training has diverged, lower training.lr; otherwise lower "
            "participation.per_round"
        )
    return np.asarray(np.rint(products * 2.0**bits), np.int64, order="C")


def from_fixed(values: NDArray[np.int64], bits: int = FRACTION_BITS) -> NDArray[np.float64]:
    """Return fixed-point numbers with ``bits`` digits behind the point as float64, in the shape of ``values``."""
    return np.asarray(values / 2.0**bits)


def fraction_bits(dtype: np.dtype[Any]) -> int:
    """Return the binary digits behind the point for an array of this dtype."""
    return FRACTION_BITS if dtype.kind == "f" else WHOLE_FRACTION_BITS
