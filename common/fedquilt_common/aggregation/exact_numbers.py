"""Numbers of replies that keep every digit: arrays of floats are narrowed on their way (``wire.up``), bits are not."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

BITS: Final = "int64"
"""The dtype of ``to_bits``, for ``Task.dtypes``."""


def to_bits(numbers: ArrayLike) -> NDArray[np.int64]:
    """Return numbers, of any shape, as the bits of float64."""
    return np.asarray(numbers, np.float64).view(np.int64)


def from_bits(bits: NDArray[Any], largest: float) -> NDArray[np.float64]:
    """Return numbers from their bits; a client may send any, so what is not finite becomes finite.

    Args:
        bits: int64 of any shape; or the numbers themselves, as in stored replies of an earlier version.
        largest: the greatest absolute value of a number.
    """
    numbers = bits.astype(np.float64) if bits.dtype.kind == "f" else bits.view(np.float64)
    return np.clip(np.nan_to_num(numbers), -largest, largest)
