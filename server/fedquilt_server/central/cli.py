"""The command ``fedquilt central``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Final

import typer

from fedquilt_common.errors import ExperimentError, FedquiltError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.process.signals import StopSignal
from fedquilt_server.central.central_run import CentralRun, CentralStoppedError
from fedquilt_server.central.plan import CENTRAL, CentralPlan, plan_central
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs import clock
from fedquilt_server.status.console import print_message
from fedquilt_server.status.results import Ending, RunStatus
from fedquilt_server.status.snapshot import RunPhase, StatusStore
from fedquilt_server.status.summary import print_summary
from fedquilt_server.status.terminal import ProgressDisplay

_STOPPED: Final = "a signal stopped the training; run the same command again to resume"
_PHASES: Final[dict[RunStatus, RunPhase]] = {
    "running": "training", "finished": "finished", "failed": "failed", "stopped": "stopped",
}  # fmt: skip

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def group() -> None:
    """Group the command, so that typer keeps its name."""


@app.command()
def central(
    experiment: Annotated[Path, typer.Argument(help="Experiment file (YAML).")],
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/NAME-central.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key, such as training.lr=0.05; repeatable.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over all samples.", show_default="rounds x training.epochs")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads; another number gives other bits.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to stderr.")] = False,
) -> None:
    """Train the experiment's model in one place on the samples of all clients: the baseline of a federated run.

    The run folder is like that of other runs. Run the same command again to resume an interrupted run.
    """
    loaded = load_experiment(experiment, set_ or ())
    plan = _make_plan(loaded, epochs)
    folder, stop = out or Path("runs") / f"{loaded.name}-{CENTRAL}", StopSignal()
    store = StatusStore()
    progress = ProgressDisplay("", plan.recorded.rounds, 0.0, stop)
    with progress, progress.follow(lambda: store.current):
        progress.stage(f"Loading {loaded.data.set} and the model")
        run = CentralRun(plan, folder, threads)
        try:
            progress.skip_rounds(run.done)
            _execute(run, stop, store)
            result = run.result()
        finally:
            run.release()
    if result.status == "stopped":
        print_message(f"Interrupted. Run the same command again to resume; the run folder is {folder}")
    elif json_:
        typer.echo(result.model_dump_json(indent=2))
    else:
        print_summary(result, folder, {})
    raise typer.Exit(result.exit_code or 0)


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
    except Exception as error:
        _end_failed(run, f"{type(error).__name__}: {error}", 1)
        raise
    finally:
        _show(run, store, _PHASES[run.ending.status])
    return None


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


def run(arguments: list[str]) -> None:
    """Run one command with its arguments."""
    app(arguments, prog_name="fedquilt")
