"""Checks arrays that the server half of an algorithm gives away: names, dtypes, shapes, finite numbers. Pure.

Each function returns what is wrong and what to write instead, without the last full stop; an empty text if nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import PackedArrays, read_dtype, wire_dtype

LARGEST: Final = float(np.finfo(np.float32).max)
"""Numbers travel, and are stored, in float32 at most."""
_NOT_FINITE: Final = (
    "numbers that are not finite, or beyond float32's 3.4e38; look for a division by 0, a step that is too large, or "
    "weights that are all 0"
)


def shorten(value: object) -> str:
    """Return a value's type and beginning, such as ``None``, ``the list [1, 2, 3]`` or ``Task(...)``."""
    if value is None:
        return "None"
    text, kind = repr(value), type(value).__name__
    short = text if len(text) <= 60 else text[:57] + "..."
    return short if text.startswith(kind) else f"the {kind} {short}"


def arrays_problem(arrays: object, where: str) -> str:
    """Check that arrays can be stored and sent, and that their numbers are finite.

    Args:
        arrays: should be a mapping of names to numpy arrays.
        where: names them for the message.
    """
    if not isinstance(arrays, Mapping):
        return f"{where} is {shorten(arrays)}; it maps names to numpy arrays"
    for name, x in arrays.items():
        if problem := _name_problem(name) or _type_problem(x) or _number_problem(x):
            return f"{where}[{name!r}] {problem}"
    return ""


def _name_problem(name: object) -> str:
    return "" if isinstance(name, str) else "has a name that is not text; name each array"


def _type_problem(x: object) -> str:
    if not isinstance(x, np.ndarray | np.generic):
        return f"is {shorten(x)}; use a numpy array, such as `np.asarray(value, np.float32)`"
    try:
        wire_dtype(x.dtype, "fp32")
    except PayloadError as error:
        return f"cannot be stored or sent: {error}"
    return ""


def _number_problem(x: NDArray[Any]) -> str:
    return "" if is_finite(np.asarray(x)) else f"has {_NOT_FINITE}"


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
