"""Run a sweep from Python, and read the runs of a sweep's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquilt.run import Run, load_run
from fedquilt.simulation import ExperimentSource, import_path
from fedquilt_common.errors import FedquiltError, PackageMissingError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import Override
from fedquilt_server.sweep.manifest import Settings, SweepManifest, SweptRun, SweptStatus, read_manifest
from fedquilt_server.sweep.plan import plan_sweep
from fedquilt_server.sweep.progress import SweepProgress
from fedquilt_server.sweep.run_process import RunHost
from fedquilt_server.sweep.sweep_file import SweepSource, read_source, source_of
from fedquilt_server.sweep.sweep_file import vary as vary_source
from fedquilt_server.sweep.sweeper import default_jobs, run_sweep

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        folder: its run folder.
        settings: the value, or its label, of each key that varies.
        status: ``finished``, ``failed``, ``stopped``, or ``pending`` if it has not started.
        reason: why it failed or was stopped.
        run: its experiment, rounds and model, as ``simulate`` returns them; None if it has no ``result.json``. A run
            that failed has the rounds that it finished.
    """

    folder: Path
    settings: Settings
    status: SweptStatus
    reason: str = field(repr=False)
    run: Run | None = field(repr=False)


@dataclass(frozen=True)
class Sweep:
    """A sweep in its folder; ``sweep`` and ``load_sweep`` return one.

    Attributes:
        folder: the folder of the sweep, with ``sweep.json`` and one folder for each run.
        name: name of the sweep.
        runs: every run, in the order in which they start.
    """

    folder: Path
    name: str
    runs: list[SweepRun]

    @property
    def finished(self) -> list[SweepRun]:
        """The runs that are finished; each has a ``run``."""
        return [each for each in self.runs if each.status == "finished"]

    @property
    def failed(self) -> list[SweepRun]:
        """The runs that failed."""
        return [each for each in self.runs if each.status == "failed"]

    def frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row a run: its settings, its status, and ``final`` of its ``result.json``.

        Raises:
            PackageMissingError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise PackageMissingError(
                "frame() needs the Python package pandas: run `pip install pandas`, or use `runs`"
            ) from None
        return pd.DataFrame(
            {**each.settings, "status": each.status, **(each.run.result.final if each.run else {})}
            for each in self.runs
        )


def sweep(
    experiment: ExperimentSource,
    vary: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: bool = True,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the same word as the option --set
    **keys: Any,
) -> Sweep:
    """Run an experiment in many variations on this machine, and return every run.

    Each run is a process, which ends with the call, even when you interrupt it. Call it again to skip what is finished,
    resume what was interrupted and retry what failed. A run that fails raises nothing: its ``status`` is ``failed``,
    and the others go on.

    Args:
        experiment: an experiment as for ``simulate``, or a sweep file's path.
        vary: for each dotted key its values, such as ``{"seed": [1, 2, 3]}``; or, for a name of your own, labels and
            the keys that each one sets, such as ``{"method": {"plain": {"algorithm.name": "fedavg"}}}``.
        out: the folder of the sweep. None: ``runs/NAME``.
        jobs: runs at once, 1 or more. None: one core for each training process.
        progress: show the progress on standard error.
        set: new values by dotted key for every run.
        **keys: new values of top-level keys for every run, such as ``rounds=3``.

    Raises:
        ExperimentError: an experiment is not valid, or nothing varies; the message lists every problem. Or ``jobs`` is
            below 1.
        RunFolderError: ``out`` holds another sweep or run.
        FolderInUseError: another process sweeps in ``out``.
    """
    source = vary_source(_read(experiment), vary or {}, "vary ")
    overrides = [Override(key, value, f"{key}={value!r}") for key, value in keys.items()]
    overrides += [Override(path, value, f"set={{{path!r}: {value!r}}}") for path, value in (set or {}).items()]
    plan = plan_sweep(source, overrides, None if out is None else Path(out))
    at_once = default_jobs([run.experiment for run in plan.runs]) if jobs is None else jobs
    host = RunHost(python_path=tuple(import_path()))
    return _made(plan.folder, run_sweep(plan, host, at_once, SweepProgress(enabled=progress)))


def load_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """Load a sweep from its folder.

    Raises:
        RunFolderError: the folder holds no ``sweep.json``, or a damaged one.
    """
    return _made(Path(folder), read_manifest(Path(folder)))


def _read(experiment: ExperimentSource) -> SweepSource:
    if isinstance(experiment, Experiment):
        return source_of(experiment.model_dump(mode="json"), "experiment", experiment.name)
    if isinstance(experiment, Mapping):
        return source_of(experiment, "experiment", "experiment")
    return read_source(Path(experiment))


def _made(folder: Path, manifest: SweepManifest) -> Sweep:
    return Sweep(folder, manifest.name, [_made_run(folder / run.folder, run) for run in manifest.runs])


def _made_run(folder: Path, run: SweptRun) -> SweepRun:
    try:
        loaded = load_run(folder)
    except FedquiltError:
        loaded = None
    return SweepRun(folder, run.settings, run.status, run.reason, loaded)
