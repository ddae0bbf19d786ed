"""Rounds floats to fp32, fp16 or bf16, and widens bf16 again; a number that the format cannot hold is an error."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.container_header import DTYPES

_BF16_INFINITY: Final = 0xFF00
"""The bits of infinity without the sign, shifted by one; those of NaN are larger."""


def to_bf16(x: NDArray[Any]) -> NDArray[np.uint16]:
    """Round to bf16, to nearest even; NaN stays NaN, infinity stays infinity.

    Args:
        x: numbers of any shape, read as float32.

    Returns:
        The bits of bf16, uint16 of the same shape.
    """
    bits = np.asarray(x, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    bits16: NDArray[np.uint16] = np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return bits16


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen the bits of bf16 (uint16) to float32 of the same shape, exactly."""
    widened: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def narrow(name: str, x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round an array to the numbers of a safetensors dtype.

    Args:
        name: the array's name, for the message.
        x: any shape.
        dtype: safetensors name.

    Returns:
        The same shape in C order; bf16 as uint16. No copy if that is what ``x`` is.

    Raises:
        PayloadError: a finite number becomes infinite.
    """
    kind = DTYPES["F32" if dtype == "BF16" else dtype]
    if x.dtype == kind and dtype != "BF16":
        return np.asarray(x, order="C")
    with np.errstate(over="ignore"):
        narrowed = np.asarray(x, dtype=kind, order="C")
    if kind.itemsize < x.dtype.itemsize:
        advice = "fp16's 65504: send it as fp32 or bf16" if dtype == "F16" else "fp32's 3.4e38"
        _check_overflow(name, x, narrowed, advice)
    if dtype != "BF16":
        return narrowed
    bits = to_bf16(narrowed)
    if (bits << 1).max(initial=0) >= _BF16_INFINITY:  # without the sign; an array seldom has such numbers
        _check_overflow(name, narrowed, from_bf16(bits), "bf16's 3.39e38: send it as fp32")
    return bits


def _check_overflow(name: str, x: NDArray[Any], narrowed: NDArray[Any], advice: str) -> None:
    if not np.array_equal(np.isfinite(narrowed), np.isfinite(x)):
        raise PayloadError(f"array {name!r} holds numbers beyond {advice}")
