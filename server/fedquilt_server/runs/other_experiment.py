"""How the experiment of a folder's run differs from the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.yaml_text import load_yaml

_SHOWN: Final = 3
"""Keys that are named at most."""


def name_other_experiment(folder: Path, before: str, now: Experiment) -> str:
    """Say that the folder holds a run of another experiment, and name the first keys that differ, with both values.

    Args:
        folder: the run's folder.
        before: the run's experiment, YAML.
        now: the experiment that was asked for.
    """
    old, new = _flatten(load_yaml(before, str(folder))), _flatten(now.model_dump(mode="json"))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changes = [f"{key} was {old.get(key)!r} and is {new.get(key)!r}" for key in keys[:_SHOWN]]
    more = [f"{len(keys) - _SHOWN} more keys"] if len(keys) > _SHOWN else []
    return f"{folder} holds a run of another experiment ({'; '.join([*changes, *more])})"


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a nested structure by dotted key."""
    if not isinstance(value, Mapping | list) or not value:
        return {path: value}
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    inside = (_flatten(item, f"{path}.{key}" if path else str(key)) for key, item in items)
    return {key: item for each in inside for key, item in each.items()}
