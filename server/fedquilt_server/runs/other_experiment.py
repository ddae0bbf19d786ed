"""How the experiment of a folder's run differs from the one that was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.yaml_text import load_yaml

_SHOWN: Final = 3
"""Keys that are named at most."""
_WIDEST: Final = 60
"""Characters of a value that are shown at most."""
_ABSENT: Final = object()


def name_other_experiment(folder: Path, before: str, now: Experiment) -> str:
    """Say that the folder holds a run of another experiment, and name the first keys that differ, with both values.

    Args:
        folder: the run's folder.
        before: the run's experiment, YAML; nothing is named if it cannot be read.
        now: the experiment that was asked for.
    """
    old, new = _flatten(_read(before)), _flatten(now.model_dump(mode="json"))
    keys = [key for key in {**old, **new} if old.get(key, _ABSENT) != new.get(key, _ABSENT)] if old else []
    changes = [f"{key} {_show('was', old, key)} and {_show('is', new, key)}" for key in keys[:_SHOWN]]
    more = [f"{len(keys) - _SHOWN} more keys"] if len(keys) > _SHOWN else []
    named = f" ({'; '.join([*changes, *more])})" if changes else ""
    return f"{folder} holds a run of another experiment{named}"


def _read(text: str) -> Mapping[str, Any]:
    try:
        found = load_yaml(text, "experiment.yaml")
    except ExperimentError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _show(verb: str, values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return f"{verb} not set"
    text = json.dumps(values[key], ensure_ascii=False, default=str)
    if "://" in text:  # an address may hold a password
        return f"{verb} another address"
    return f"{verb} {text if len(text) <= _WIDEST else text[:_WIDEST] + '...'}"


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a nested structure by dotted key."""
    if not isinstance(value, Mapping | list) or (path and not value):
        return {path: value}
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    inside = (_flatten(item, f"{path}.{key}" if path else str(key)) for key, item in items)
    return {key: item for each in inside for key, item in each.items()}
