"""The command ``fedquilt replay``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, RunFailedError
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.user_imports import print_to_stderr
from fedquilt_server.replay.forecast import make_forecast, print_forecast
from fedquilt_server.replay.recording import Recording, read_recording, read_run_id
from fedquilt_server.replay.replay import ReplaySettings, replay_run
from fedquilt_server.replay.report import ReplayedRound, ReplayReport, print_report
from fedquilt_server.replay.training import ReplayStoppedError
from fedquilt_server.replay.work_folder import ReplayOptions
from fedquilt_server.status.console import ERROR_CONSOLE, STANDARD_ERROR, print_message
from fedquilt_server.status.run_file_names import JOURNAL

SAMPLES: Final = 500
"""Rounds that a prediction simulates."""
app = CommandApp()


@app.callback()
def group() -> None:
    """Group the command, so that typer keeps its name."""


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Run folder; the command does not change it.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Work folder; the same one continues a replay. Default: a temporary one."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Training processes; default: one per processor core.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads of each, the same as on the boards; default: 1.")
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Evaluate each round, and compare the scores.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train even the replies whose files are kept.")] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="Predict rounds with another KEY=VALUE, such as deadline=30 or boards=100x; repeatable."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Rounds to simulate for --what-if; default: 500.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of --what-if; default: 0.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON; progress goes to stderr.")] = False,
) -> None:
    """Replay a run from its journal without boards, and check that it gives the same model, bit for bit.

    Replies come from the run folder (coordinator --keep-replies), or are trained again and compared with the journal.
    With --what-if, predict the times of its rounds with other settings instead.
    """
    of_replay = {"out": out, "workers": workers, "threads": threads, "evaluate": evaluate, "retrain": retrain}
    of_prediction = {"samples": samples, "seed": seed}
    if what_if:
        _refuse(of_replay, "has no effect with --what-if, which trains no model; remove one of the two")
        return _predict(run, what_if, samples or SAMPLES, seed or 0, json_)
    _refuse(of_prediction, "is for a prediction; remove it, or add --what-if")
    stop = StopSignal()
    settings = ReplaySettings(workers or os.cpu_count() or 1, ReplayOptions(evaluate, retrain, threads or 1), stop)
    try:
        with _work_folder(out) as work, print_to_stderr(wanted=json_):
            report = _replay(run, work, settings)
    except ReplayStoppedError:
        advice = "Run the same command again to continue" if out else "With --out, an interrupted replay can continue"
        print_message(f"Interrupted. {advice}")
        raise typer.Exit(stop.exit_code) from None
    if json_:
        typer.echo(report.model_dump_json(indent=2))
    else:
        print_report(report)
    if not report.identical:
        raise typer.Exit(RunFailedError.exit_code)
    return None


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options of the other use of the command; None and False: not given."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise ExperimentError(f"--{name} {reason}")


def _predict(run: Path, what_if: list[str], samples: int, seed: int, as_json: bool) -> None:
    read_run_id(run)
    with tempfile.TemporaryDirectory(prefix="fedquilt-replay-") as folder:
        forecast = make_forecast(read_recording(run, Path(folder) / JOURNAL), what_if, samples, seed)
    if as_json:
        typer.echo(forecast.model_dump_json(indent=2))
    else:
        print_forecast(forecast)


@contextmanager
def _work_folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="fedquilt-replay-") as folder:
        yield Path(folder)


def _replay(run: Path, work: Path, settings: ReplaySettings) -> ReplayReport:
    live = STANDARD_ERROR.isatty()
    columns = (TextColumn("[bold]replayed rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=ERROR_CONSOLE, disable=not live) as bar:
        task = bar.add_task("rounds")

        def start(recording: Recording, done: int) -> None:
            bar.update(task, total=len(recording.rounds), completed=done)

        def advance(row: ReplayedRound) -> None:
            bar.advance(task)
            if not live:
                print_message(f"round {row.round}: {row.equal} of {row.replies} replies are equal, {row.seconds:.2f} s")

        return replay_run(run, work, settings, start, advance)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt replay`` with these arguments."""
    app(arguments, prog_name="fedquilt")
