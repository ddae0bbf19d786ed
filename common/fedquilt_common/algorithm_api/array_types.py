"""Checks what an algorithm gives away on either side: names and types of values, without reading an array. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedquilt_common.errors import PayloadError
from fedquilt_common.submodels.patch_layout import AssembledArrays
from fedquilt_common.wire.codec import PackedArrays, wire_dtype


def shorten(value: object) -> str:
    """Return a value's type and beginning, such as ``None``, ``the list [1, 2, 3]`` or ``Task(...)``."""
    if value is None:
        return "None"
    text, kind = repr(value), type(value).__name__
    short = text if len(text) <= 60 else text[:57] + "..."
    return short if text.startswith(kind) else f"the {kind} {short}"


def name_type(value: object) -> str:
    """Return a value's type alone, such as ``None`` or ``an object of type list``: the value may be private."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


Show = Callable[[object], str]
"""Describes a wrong value in a message."""


def mapping_problem(
    mapping: object, where: str, is_right: Callable[[object], bool], advice: str, show: Show = shorten
) -> str:
    """Check a mapping of names to values.

    Args:
        mapping: should be one.
        where: names it for the message.
        is_right: whether a value may be in it.
        advice: what to write instead.
        show: describes a wrong value.

    Returns:
        What is wrong and what to write instead, without the last full stop; empty if nothing is.
    """
    if not isinstance(mapping, Mapping):
        return f"{where} is {show(mapping)}; {advice}"
    for name, value in mapping.items():
        if not isinstance(name, str) or not is_right(value):
            return f"{where}[{_show_name(name, show)}] is {show(value)}; {advice}"
    return ""


def array_types_problem(arrays: object, where: str, show: Show = shorten) -> str:
    """Check that arrays can be stored and sent. Those that come from a file or a message can, and are not opened.

    Args:
        arrays: should be a mapping of names to numpy arrays.
        where: names them for the message.
        show: describes a wrong value.

    Returns:
        What is wrong and what to write instead, without the last full stop; empty if nothing is.
    """
    if isinstance(arrays, PackedArrays | AssembledArrays):
        return ""
    if not isinstance(arrays, Mapping):
        return f"{where} is {show(arrays)}; it maps names to numpy arrays"
    for name, x in arrays.items():
        if problem := _name_problem(name) or _type_problem(x, show):
            return f"{where}[{_show_name(name, show)}] {problem}"
    return ""


def _show_name(name: object, show: Show) -> str:
    return repr(name) if isinstance(name, str) else show(name)


def _name_problem(name: object) -> str:
    return "" if isinstance(name, str) else "has a name that is not text; name each array"


def _type_problem(x: object, show: Show) -> str:
    if not isinstance(x, np.ndarray | np.generic):
        return f"is {show(x)}; use a numpy array, such as `np.asarray(value, np.float32)`"
    try:
        wire_dtype(x.dtype, "fp32")
    except PayloadError as error:
        return f"cannot be stored or sent: {error}"
    return ""
