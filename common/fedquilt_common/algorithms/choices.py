"""Check the fields of an algorithm whose type is ``Literal[...]``, once for all algorithms."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Choices = tuple[Any, ...]


def choices(kind: type) -> Mapping[str, Choices]:
    """Return the allowed values of each field that is a ``Literal``, or a ``Literal`` or None.

    Args:
        kind: an algorithm's class. One that is not a dataclass, or whose annotations only a type checker can resolve,
            has no choices.
    """
    if not is_dataclass(kind):
        return {}
    try:
        hints = get_type_hints(kind)
    except NameError:
        return {}
    allowed = {field.name: _allowed_values(hints[field.name]) for field in fields(kind)}
    return {name: values for name, values in allowed.items() if values is not None}


def check_choices(algorithm: object) -> None:
    """Check every field that has choices.

    Raises:
        ValueError: a field's value is not one of its choices; the text names field, value and choices.
    """
    for name, allowed in choices(type(algorithm)).items():
        value = getattr(algorithm, name)
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: must be {_spell_out(allowed)}")


def _allowed_values(hint: Any) -> Choices | None:
    """Return the choices of one type hint; None for a type that allows other values too."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, types.UnionType) and types.NoneType in get_args(hint):
        members = [_allowed_values(member) for member in get_args(hint) if member is not types.NoneType]
        if len(members) == 1 and members[0] is not None:
            return (*members[0], None)
    return None


def _spell_out(allowed: Sequence[Any]) -> str:
    """``('a', 'b', 'c')`` becomes ``a, b or c``; None becomes ``or left out``."""
    *first, last = [str(value) for value in allowed if value is not None]
    text = f"{', '.join(first)} or {last}" if first else last
    return f"{text}, or left out" if None in allowed else text
