"""Checks arrays that the server half of an algorithm gives away: names, dtypes, shapes, finite numbers. Pure.

Each function returns what is wrong and what to write instead, without the last full stop; an empty text if nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api.array_types import array_types_problem
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import PackedArrays, read_dtype

LARGEST: Final = float(np.finfo(np.float32).max)
"""Numbers travel, and are stored, in float32 at most."""
_NOT_FINITE: Final = (
    "numbers that are not finite, or beyond float32's 3.4e38; look for a division by 0, a step that is too large, or "
    "weights that are all 0"
)


def arrays_problem(arrays: object, where: str) -> str:
    """Check that arrays can be stored and sent, and that their numbers are finite.

    Args:
        arrays: should be a mapping of names to numpy arrays.
        where: names them for the message.
    """
    if problem := array_types_problem(arrays, where):
        return problem
    assert isinstance(arrays, Mapping)  # noqa: S101 - the types are right
    for name, x in arrays.items():
        if not is_finite(np.asarray(x)):
            return f"{where}[{name!r}] has {_NOT_FINITE}"
    return ""


def is_finite(x: NDArray[Any]) -> bool:
    """Return whether all numbers are finite in float32; any dtype but complex ones, any shape.

    The least and the greatest number show it, so a model needs no copy of itself for the check.
    """
    if x.dtype.kind != "f" or not x.size:
        return True
    with np.errstate(invalid="ignore"):
        return bool(x.min() >= -LARGEST and x.max() <= LARGEST)


def layout_problem(arrays: Arrays, models: Iterable[Arrays]) -> str:
    """Check that arrays have the names, dtypes and shapes of a model; no number is read.

    Args:
        arrays: of the global model.
        models: those that it may be. The problem is with the first.
    """
    first = ""
    for model in models:
        if not (problem := _difference(arrays, model)):
            return ""
        first = first or problem
    return first


def _difference(arrays: Arrays, model: Arrays) -> str:
    found, wanted = _layout(arrays), _layout(model)
    if missing := [name for name in wanted if name not in found]:
        return f"State.arrays lacks {missing[0]!r}; it has all arrays of the model, or none if there is no global model"
    if others := [name for name in found if name not in wanted]:
        return f"State.arrays[{others[0]!r}] is not an array of the model; put further arrays into State.extra"
    return next(
        (_describe_layout(name, found[name], wanted[name]) for name in wanted if found[name] != wanted[name]), ""
    )


_ArrayLayout = tuple[np.dtype[Any], tuple[int, ...]]


def _layout(arrays: Arrays) -> dict[str, _ArrayLayout]:
    """Return dtype and shape of each array; a file is not opened for it."""
    if isinstance(arrays, PackedArrays):
        return {name: (read_dtype(dtype), shape) for name, dtype, shape in arrays.layout}
    return {name: (x.dtype, x.shape) for name, x in arrays.items()}


def _describe_layout(name: str, found: _ArrayLayout, wanted: _ArrayLayout) -> str:
    advice = "return the whole model, in which sub-models are merged"
    if found[1] == wanted[1]:
        advice = f"convert it with `np.asarray(x, np.{wanted[0]})`"
    return (
        f"State.arrays[{name!r}] is {found[0]} of shape {found[1]}, the model has {wanted[0]} of shape {wanted[1]}; "
        f"{advice}"
    )
