"""Settings of runs as dotted keys: what runs have in common, how they differ, and short names for groups of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fedquilt_server.status.units import DASH

Settings = Mapping[str, Any]
"""Dotted key, such as ``training.lr`` -> value. A missing key is a key that the run does not have."""
NOT_COMPARED: Final = frozenset({"seed", "name"})
"""Keys that do not distinguish groups: the seed gives their runs, the name has no effect."""
FIRST_KEYS: Final = ("algorithm.name", "data.set", "model.name")
_SECTIONS: Final = (
    "algorithm", "privacy", "secure_aggregation", "data", "model", "training", "participation", "wire", "fleet"
)  # fmt: skip
"""Sections of an experiment by which runs differ on purpose, the most telling first; other keys follow them."""
MISSING: Final = object()


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested mappings and lists with their values; list items are numbered from 0."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = enumerate(value)
    else:
        yield path, value
    for key, inner in items:
        yield from flatten(inner, f"{path}.{key}" if path else str(key))


def compared(experiment: Mapping[str, Any]) -> Settings:
    """Return the dotted settings that distinguish groups of runs; not those that are null, which older runs lack."""
    return {key: value for key, value in flatten(experiment) if value is not None and key not in NOT_COMPARED}


def fingerprint(settings: Settings) -> str:
    """Return a text that is the same for the same settings only."""
    return json.dumps({key: _mark(value) for key, value in settings.items()}, sort_keys=True)


def differing_keys(several: Sequence[Settings]) -> list[str]:
    """Return the keys whose values differ, or that some do not have, the most telling ones first.

    ``1`` and ``1.0`` are equal, ``1`` and ``true`` are not.
    """
    keys = dict.fromkeys(key for one in several for key in one)
    differ = [key for key in keys if len({_mark(one.get(key, MISSING)) for one in several}) > 1]
    return sorted(differ, key=_rank)


def _rank(key: str) -> tuple[int, int]:
    """Return the place of a key: ``FIRST_KEYS``, the sections, the rest."""
    section = key.partition(".")[0]
    first = FIRST_KEYS.index(key) if key in FIRST_KEYS else len(FIRST_KEYS)
    place = _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS)
    return first, place


def _mark(value: Any) -> str:
    if value is MISSING:
        return ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if number and abs(value) < 1 << 53 else json.dumps(value, sort_keys=True, default=str)


def same_value(a: Any, b: Any) -> bool:
    """Return whether two values of a setting are equal."""
    return _mark(a) == _mark(b)


def short_names(several: Sequence[Settings], preferred: Sequence[str] = ()) -> list[str]:
    """Name each settings by the fewest keys that tell them apart, such as "fedprox" or "fedavg, lr=0.1".

    Args:
        several: distinct settings.
        preferred: keys that are named first, even where fewer would do: those that a sweep varies.
    """
    differ = differing_keys(several)
    chosen = [key for key in preferred if key in differ]
    order = [*chosen, *(key for key in differ if key not in chosen)]
    for key in order[len(chosen) :]:
        if _classes(several, [*chosen, key]) > _classes(several, chosen):
            chosen.append(key)
    return [_name(one, chosen) for one in several]


def _classes(several: Sequence[Settings], keys: Sequence[str]) -> int:
    return len({tuple(_mark(one.get(key, MISSING)) for key in keys) for one in several})


def _name(settings: Settings, keys: Sequence[str]) -> str:
    words = [_word(key, settings[key]) for key in keys if key in settings]
    return ", ".join(words) or str(settings.get("algorithm.name", "all runs"))


def _word(key: str, value: Any) -> str:
    speaks_for_itself = key in FIRST_KEYS or (isinstance(value, str) and "." not in key)  # such as a sweep's label
    return str(value) if speaks_for_itself else f"{key.rpartition('.')[2]}={show_value(value)}"


def show_value(value: Any) -> str:
    """Return a setting's value as one writes it in YAML."""
    if value is MISSING:
        return DASH
    return value if isinstance(value, str) else json.dumps(value, default=str)
