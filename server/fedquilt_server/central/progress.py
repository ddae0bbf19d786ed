"""Runs a central training with its progress on standard error, and records how it ended."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from fedquilt_common.errors import ExperimentError, FedquiltError, RunFailedError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.training.out_of_memory import is_out_of_memory
from fedquilt_common.user_imports import (
    USER_ERRORS,
    describe_sys_exit,
    find_place,
    is_raised_by,
    is_user_import,
    package_of,
)
from fedquilt_server.central.central_run import CentralRun, CentralStoppedError
from fedquilt_server.central.plan import CENTRAL, CentralPlan, plan_central
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs import clock
from fedquilt_server.status.console import print_message
from fedquilt_server.status.results import Ending, Result, RunStatus
from fedquilt_server.status.snapshot import RunPhase, StatusStore
from fedquilt_server.status.terminal import ProgressDisplay

_STOPPED: Final = "a signal stopped the training; run the same command again to resume"
_NOT_PRIVATE: Final = (
    "the experiment has a privacy section, but a training in one place keeps no budget: it trains without privacy, and "
    "records none"
)
_AGAIN: Final = "run the same command again"
_PHASES: Final[dict[RunStatus, RunPhase]] = {
    "running": "training", "finished": "finished", "failed": "failed", "stopped": "stopped",
}  # fmt: skip


def train_in_folder(experiment: Experiment, epochs: int | None, folder: Path, threads: int) -> Result:
    """Train an experiment's model in one place, or resume that; a signal stops it.

    Args:
        experiment: the federated experiment.
        epochs: passes over all samples; None: ``rounds`` x ``training.epochs``.
        folder: the run folder.
        threads: CPU threads of torch.

    Raises:
        ExperimentError: the experiment trains nothing, or its data set does not suit it.
        RunFolderError: the folder holds another run, or is damaged or cannot be written.
        RunFailedError: the training has diverged, or a user's model raised an error.
    """
    plan, stop = _make_plan(experiment, epochs), StopSignal()
    if plan.drops_privacy:
        print_message(f"Warning: {_NOT_PRIVATE}")
    store = StatusStore()
    progress = ProgressDisplay("", plan.recorded.rounds, 0.0, stop)
    with progress, progress.follow(lambda: store.current):
        progress.stage(f"Loading {experiment.data.set} and the model")
        run = CentralRun(plan, folder, threads)
        try:
            progress.skip_rounds(run.done)
            _execute(run, stop, store)
            result = run.result()
        finally:
            run.release()
    if result.status == "stopped":
        print_message(f"Interrupted. Run the same command again to resume; the run folder is {folder}")
    return result


def _make_plan(experiment: Experiment, epochs: int | None) -> CentralPlan:
    """Return what is trained.

    Raises:
        ExperimentError: the experiment trains nothing, or its data set does not suit it.
    """
    bench = Workbench(experiment)
    if not bench.learns:
        raise ExperimentError(f"algorithm.name = {experiment.algorithm.name!r}: it trains no model; choose another one")
    return plan_central(experiment, bench.holdout, epochs)


def _execute(run: CentralRun, stop: StopSignal, store: StatusStore) -> None:
    """Train, show the progress, and record how the run ended."""
    _show(run, store, "training")
    if run.folder.finished:
        return _show(run, store, "finished")
    try:
        run.execute(stop, lambda _: _show(run, store, "training"))
    except CentralStoppedError:
        run.end(Ending(status="stopped", reason=_STOPPED, exit_code=stop.exit_code))
    except FedquiltError as error:
        _end_failed(run, str(error), error.exit_code)
        raise
    except USER_ERRORS as error:
        problem = describe_model_error(error, run.plan.source.model.name, run.done + 1)
        if not problem:
            _end_failed(run, f"{type(error).__name__}: {error}", 1)
            raise
        _end_failed(run, problem, RunFailedError.exit_code)
        raise RunFailedError(problem) from error
    finally:
        _show(run, store, _PHASES[run.ending.status])
    return None


def describe_model_error(error: BaseException, model: str, round: int) -> str:
    """Return what a user's model did wrong, where, and what to do; empty if the model did not cause the error.

    Args:
        error: was raised in training and caught.
        model: its name in the experiment.
        round: in which it was raised.
    """
    package = package_of(model)
    if isinstance(error, SystemExit):
        return f"the code of the model {model} {describe_sys_exit(error, package)}, and {_AGAIN}"
    if not is_user_import(model) or is_out_of_memory(error):
        return ""
    raised = f"raised {type(error).__name__}: {error}"
    if is_raised_by(error, package):
        return f"the model {model} {raised} ({find_place(error, package)}) in round {round}; correct it, and {_AGAIN}"
    if isinstance(error, OSError):
        return ""
    return f"training the model {model} {raised} in round {round}; correct the model, and {_AGAIN}"


def _end_failed(run: CentralRun, reason: str, exit_code: int) -> None:
    """Record why the run failed, as far as the disk allows."""
    with contextlib.suppress(RunFolderError):  # the error of the run itself matters more
        run.end(Ending(status="failed", reason=reason, exit_code=exit_code))


def _show(run: CentralRun, store: StatusStore, phase: RunPhase) -> None:
    plan, rounds = run.plan, run.rounds
    store.update(
        name=plan.recorded.name, run=run.folder.run, algorithm=CENTRAL, dataset=plan.source.data.set, phase=phase,
        broker_connected=True, round=min(run.done + 1, plan.recorded.rounds), rounds=plan.recorded.rounds,
        history=rounds, started_at=run.folder.started_at, opened_at=clock.now(), warning=run.divergence.warning,
        message=run.ending.reason,
    )  # fmt: skip
