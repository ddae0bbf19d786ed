"""Fixed-point numbers: their sums are exact, so masks leave no trace and the order of clients does not matter."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError

FRACTION_BITS: Final = 32
"""Binary digits behind the point; the number before them has a sign and 31 digits, in the sum of all clients."""


def to_fixed(values: NDArray[Any], weight: float, clients: int) -> NDArray[np.int64]:
    """Return weighted numbers in fixed point, rounded to the nearest.

    Args:
        values: floats or integers of any shape.
        weight: of the client.
        clients: number of clients whose numbers can be added without overflow.

    Raises:
        PayloadError: a number is not finite, or too large.
    """
    products = np.asarray(values, np.float64) * weight
    limit = 2.0 ** (63 - FRACTION_BITS) / clients
    if not bool((np.abs(products) < limit).all()):
        raise PayloadError(
            f"a number of the reply, times its weight, is not finite or not below {limit:g}, so a sum of {clients} "
            "clients cannot hide it: the training may have diverged; lower training.lr"
        )
    return np.asarray(np.rint(products * 2.0**FRACTION_BITS), np.int64)


def from_fixed(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return fixed-point numbers as float64, in the shape of ``values``."""
    return np.asarray(values / 2.0**FRACTION_BITS)
