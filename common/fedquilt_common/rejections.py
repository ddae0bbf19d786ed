"""What is wrong with the keys of a file or a message: the errors of pydantic in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import core_schema

from fedquilt_common.user_imports import suggest

ErrorDetail: TypeAlias = Mapping[str, Any]
"""An item of ``ValidationError.errors()``."""
MISSING: Final = "is missing; add it"


@dataclass(frozen=True)
class Problem:
    """What is wrong with the value at one dotted ``path``, and why."""

    path: str
    value: Any
    why: str


_WORDS: Final[Mapping[str, str]] = {
    "missing": MISSING,
    "extra_forbidden": "unknown key; remove it",
    "unexpected_keyword_argument": "unknown key; remove it",
    "int": "must be a whole number",
    "float": "must be a number",
    "decimal": "must be a number",
    "finite_number": "must be a finite number",
    "bool": "must be true or false",
    "string": "must be text",
    "string_too_long": "must have at most {max_length} characters",
    "none_required": "must be null",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_long": "must have at most {max_length} entries",
    "list": "must be a list",
    "tuple": "must be a list",
    "set": "must be a list",
    "frozen_set": "must be a list",
    "iterable": "must be a list",
    "model": "must be a section: keys with values",
    "dataclass": "must be a section: keys with values",
    "dict": "must be a section: keys with values",
    "mapping": "must be a section: keys with values",
    "invalid_key": "has a key that is not text; put it in quotes",
    "union_tag": "must have the key {discriminator} with one of its known values",
    "json_invalid": "is not JSON: {error}",
    "date": "must be a date, such as 2026-01-31",
    "datetime": "must be a date and a time, such as 2026-01-31T12:00:00",
    "time": "must be a time, such as 12:00:00",
    "timezone_aware": "must have a time zone, such as 2026-01-31T12:00:00Z",
    "path_type": "must be a path",
    "url": "must be a URL",
    "url_scheme": "must be a URL that begins with {expected_schemes}",
}
"""What to print for an error of a type, or of all types that begin with it."""
PATTERNS: Final[Mapping[str, str]] = {
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$": "1 to 64 letters, digits, '.', '_' and '-', with a letter or digit first",
    r"^[A-Za-z0-9][A-Za-z0-9_-]*$": "letters, digits, '_' and '-', with a letter or digit first",
    r"^[0-9a-f]{64}$": "64 hexadecimal digits in lower case",
    r"^[0-9a-f]{32}(?:[0-9a-f]{32})?$": "32 or 64 hexadecimal digits in lower case",
    r"^([1-9a-f][0-9a-f]{0,38}|[1-7][0-9a-f]{39})$": "a number from 1 to 2^159 - 1, in lower-case hexadecimal digits",
    r"^https?://": "a URL that begins with http:// or https://",
}
"""What text must be that matches a regular expression."""


def list_problems(error: ValidationError, root: type[BaseModel] | None = None) -> list[Problem]:
    """Return every problem once, in the order of the keys.

    Args:
        error: what pydantic raised.
        root: the model that was validated; None: unknown keys get no suggestion.
    """
    places: dict[str, list[ErrorDetail]] = {}
    for detail in _own_details(error):
        places.setdefault(".".join(_keys(detail)), []).append(detail)
    return [_describe(path, details, root) for path, details in places.items()]


def first_problem(error: ValidationError, whole: str = "file") -> str:
    """Return place and reason of the first problem. ``whole`` names the place of one that has no key."""
    problem = list_problems(error)[0]
    return f"{problem.path or whole}: {problem.why}"


def explain(detail: ErrorDetail) -> str:
    """Return what is wrong with a value, without the value, and what to do."""
    reason = _reason(detail)
    return reason + _advise(reason, detail["input"])


def _reason(detail: ErrorDetail) -> str:
    kind = detail["type"]
    if kind in ("value_error", "assertion_error") or kind not in get_args(core_schema.ErrorType):
        return re.sub(r"^(Value error|Assertion failed), ", "", str(detail["msg"]))
    if kind in _SPECIAL:
        return _SPECIAL[kind](detail)
    words = next((_WORDS[name] for name in _prefixes(kind) if name in _WORDS), "is not what its key takes")
    limits = {name: _plain_number(value) for name, value in detail.get("ctx", {}).items()}
    return words.format_map(limits)


def _own_details(error: ValidationError) -> list[ErrorDetail]:
    """Return the details of an error, without lists that are too short only because an entry of theirs is wrong."""
    details: list[ErrorDetail] = [dict(detail) for detail in error.errors(include_url=False)]
    inside = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    return [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in inside]


_MEMBER: Final = re.compile(r"bool|float|int|none|str|constrained-\w+|[a-z-]+\[.*\]")
"""What pydantic adds to the place of an error for each member of a union, such as ``int`` of ``str | int``."""


def _keys(detail: ErrorDetail) -> list[str]:
    return [part for part in map(str, detail["loc"]) if not _MEMBER.fullmatch(part)]


def _describe(path: str, details: Sequence[ErrorDetail], root: type[BaseModel] | None) -> Problem:
    first = details[0]
    if first["type"] == "missing":
        return Problem(path, None, MISSING)
    if first["type"] == "extra_forbidden" and root is not None:
        return Problem(path, first["input"], f"unknown key; {suggest(_keys(first)[-1], _keys_at(first, root))}")
    return Problem(path, first["input"], explain(first) if len(details) == 1 else _join_reasons(details))


def _join_reasons(details: Sequence[ErrorDetail]) -> str:
    """Return the reasons of a union's members as one: ``must be text or a whole number``."""
    reasons, must = list(dict.fromkeys(map(_reason, details))), "must be "
    if all(reason.startswith(must) for reason in reasons):
        return must + " or ".join(reason.removeprefix(must) for reason in reasons)
    return ", or ".join(reasons)


def _keys_at(detail: ErrorDetail, section: type[BaseModel]) -> list[str]:
    """Return the keys of the section around the one at the end of an error's place."""
    for part in detail["loc"][:-1]:
        if isinstance(part, str) and part in section.model_fields:
            section = _find_section(section.model_fields[part].annotation) or section
    return [field.alias or name for name, field in section.model_fields.items()]


def is_key(path: str, root: type[BaseModel]) -> bool:
    """Return whether a model has a dotted key, such as ``fleet.0.kind``; a section that takes any key has every one."""
    return not explain_unknown_key(path, root)


def explain_unknown_key(path: str, root: type[BaseModel]) -> str:
    """Return what is wrong with a dotted key that a model does not have; empty if it has the key, as for ``is_key``."""
    section: type[BaseModel] | None = root
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if section is None:  # a value, or a list of values, whose items have numbers
            return "" if part.isdecimal() else f"{'.'.join(parts[:depth])} has no keys; set {'.'.join(parts[:depth])}"
        if section.model_config.get("extra") == "allow":
            return ""
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        if part in fields:
            section = _find_section(fields[part].annotation)
        elif not part.isdecimal():
            return f"unknown key '{part}'; {suggest(part, fields)}"
    return ""


def _find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the model class in a field's type, such as ``Data | None``; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_find_section, get_args(annotation))), None)


def _prefixes(kind: str) -> Iterator[str]:
    """``int_from_float`` -> ``int_from_float``, ``int_from``, ``int``."""
    parts = kind.split("_")
    return ("_".join(parts[:length]) for length in range(len(parts), 0, -1))


def _plain_number(value: Any) -> Any:
    """Return a limit as people write it: 400,000, or 0.5."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,}" if isinstance(value, int) else value


def _advise(reason: str, value: Any) -> str:
    """Return what to do about a value that YAML reads as another type because of its quotes."""
    if reason == _WORDS["string"] and isinstance(value, int | float):
        return "; put it in quotes"
    quoted = isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", value.strip())
    return "; remove the quotes" if quoted and reason in (_WORDS["int"], _WORDS["float"]) else ""


def _explain_length(detail: ErrorDetail) -> str:
    least, what = detail["ctx"]["min_length"], "entries" if detail["type"] == "too_short" else "characters"
    if not detail["input"]:
        return f"is empty; give at least {'one entry' if what == 'entries' else 'one character'}"
    return f"must have at least {_plain_number(least)} {what}"


def _explain_pattern(detail: ErrorDetail) -> str:
    pattern = detail["ctx"]["pattern"]
    return f"must be {PATTERNS[pattern]}" if pattern in PATTERNS else f"must have the form {pattern}"


_SPECIAL: Final[Mapping[str, Callable[[ErrorDetail], str]]] = {
    "too_short": _explain_length,
    "string_too_short": _explain_length,
    "string_pattern_mismatch": _explain_pattern,
}
