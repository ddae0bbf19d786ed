"""How the experiment of a folder's run differs from the one that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import ExperimentError
from fedquilt_common.files.yaml_text import load_yaml
from fedquilt_server.status.run_file_names import EXPERIMENT
from fedquilt_server.status.settings import MISSING, Settings, differing_keys, flatten, show_value

_SHOWN: Final = 3
"""Keys that are named at most."""
_WIDEST: Final = 60
"""Characters of a value that are shown at most."""
CHOOSE: Final = "choose another --out, or give the settings of that run to resume it"


def name_other_experiment(folder: Path, before: str, now: str) -> str:
    """Return a sentence: the folder holds a run of another experiment, and the first keys that differ, with values.

    Args:
        folder: the run's folder.
        before: the run's experiment, YAML; nothing is named if it cannot be read.
        now: the experiment that was asked for, YAML.
    """
    try:
        several = [dict(flatten(load_yaml(text, EXPERIMENT) or {})) for text in (before, now)]
        keys = differing_keys(several) if all(several) else []
    except ExperimentError:
        several, keys = [], []
    more = [f"and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    changes = "; ".join([*(_describe(key, *several) for key in keys[:_SHOWN]), *more])
    return f"{folder} holds a run of another experiment" + (f" ({changes})" if changes else "")


def _describe(key: str, old: Settings, new: Settings) -> str:
    was, now = (_shorten(one.get(key, MISSING)) for one in (old, new))
    if "://" in was + now:
        return f"{key}: another address"  # it may hold a password
    return f"{key} was {was} and is {now}"


def _shorten(value: Any) -> str:
    text = "not set" if value is MISSING else show_value(value)
    return text if len(text) <= _WIDEST or "://" in text else f"{text[:_WIDEST]}..."
