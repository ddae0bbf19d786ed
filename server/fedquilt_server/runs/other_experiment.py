"""How the experiment of a folder's run differs from the one that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_common.files.yaml_text import load_yaml
from fedquilt_server.status.run_file_names import EXPERIMENT
from fedquilt_server.status.settings import MISSING, Settings, differing_keys, flatten, show_value

_SHOWN: Final = 3
"""Keys that are named at most."""
_WIDEST: Final = 60
"""Characters of a value that are shown at most."""
CHOOSE: Final = "choose another --out, or give the settings of that run to resume it"


def name_other_experiment(folder: Path, recorded: str | None, now: str) -> str:
    """Return a sentence: the folder holds a run of another experiment, and the first keys that differ, with values.

    Args:
        folder: the run's folder.
        recorded: the run's experiment, YAML, perhaps of an earlier version; nothing is named if it cannot be read.
            None: the folder holds no run.
        now: the experiment that was asked for, YAML.

    Returns:
        Empty if the folder holds no run, or one of the same experiment.
    """
    if recorded is None or recorded == now or (before := _add_new_keys(recorded)) == now:
        return ""
    try:
        several = [dict(flatten(load_yaml(text, EXPERIMENT) or {})) for text in (before, now)]
        keys = differing_keys(several) if all(several) else []
    except ExperimentError:
        several, keys = [], []
    more = [f"and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    changes = "; ".join([*(_describe(key, *several) for key in keys[:_SHOWN]), *more])
    return f"{folder} holds a run of another experiment" + (f" ({changes})" if changes else "")


def _add_new_keys(recorded: str) -> str:
    """Return an experiment with the keys that this version has added, at their defaults; an invalid one as it is."""
    try:
        return dump_experiment(Experiment.model_validate(load_yaml(recorded, EXPERIMENT)))
    except (ExperimentError, ValidationError):
        return recorded


def _describe(key: str, old: Settings, new: Settings) -> str:
    was, now = (_shorten(one.get(key, MISSING)) for one in (old, new))
    if "://" in was + now:
        return f"{key}: another address"  # it may hold a password
    return f"{key} was {was} and is {now}"


def _shorten(value: Any) -> str:
    text = "not set" if value is MISSING else show_value(value)
    return text if len(text) <= _WIDEST or "://" in text else f"{text[:_WIDEST]}..."
