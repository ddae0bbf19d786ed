"""Run an experiment from Python, with its broker, coordinator and agents as processes of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fedquilt.run import Run, load_run
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import Override, make_experiment
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_server.simulate.plan import make_plan, new_run_folder
from fedquilt_server.simulate.simulate import run_simulation, run_with_progress

ExperimentSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Experiment


def simulate(
    experiment: ExperimentSource,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the same word as the option --set
    **keys: Any,
) -> Run:
    """Run an experiment on this machine and return its results.

    The broker, the coordinator and the agents are child processes, which are restarted if they die. They end with the
    call, even when you interrupt it. Nothing changes in your own process: no signal handler, no random state. The
    children can import every package that you can import.

    Args:
        experiment: a YAML file's path, a dictionary with the same keys, or an ``Experiment``.
        out: the run folder. An interrupted run in it resumes. None makes a new folder below ``runs/``.
        progress: show the progress on standard error.
        set: new values by dotted key, such as ``{"training.lr": 0.02}``; list items are numbered from 0.
        **keys: new values of top-level keys, such as ``rounds=3``.

    Raises:
        ExperimentError: the experiment is not valid; the message lists every problem.
        RunFolderError: ``out`` holds a finished run, or one of another experiment.
        BrokerMissingError: no mosquitto is installed.
        RunFailedError: the run ended before its last round.
    """
    loaded = load_experiment(experiment, set=set, **keys)
    folder = new_run_folder(loaded.name) if out is None else Path(out)
    plan = make_plan(loaded, folder, python_path=tuple(import_path()))
    if progress:
        run_with_progress(plan)
    else:
        run_simulation(plan, lambda snapshot: None)
    return load_run(folder)


def load_experiment(
    experiment: ExperimentSource,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as above
    **keys: Any,
) -> Experiment:
    """Load and check an experiment. The arguments are those of ``simulate``.

    Raises:
        ExperimentError: lists every problem.
    """
    overrides = [Override(key, value, f"{key}={value!r}") for key, value in keys.items()]
    overrides += [Override(path, value, f"set={{{path!r}: {value!r}}}") for path, value in (set or {}).items()]
    if isinstance(experiment, Experiment):
        return make_experiment(experiment.model_dump(mode="json"), "experiment", overrides)
    if isinstance(experiment, Mapping):
        return make_experiment(experiment, "experiment", overrides)
    path = Path(experiment)
    return make_experiment(load_yaml(read_text(path), str(path)), str(path), overrides)


def import_path() -> Iterator[str]:
    """Return where this process finds packages; "" stands for the current folder."""
    return (path or str(Path.cwd()) for path in sys.path)
