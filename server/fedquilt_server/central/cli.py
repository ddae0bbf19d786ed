"""The command ``fedquilt central``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.user_imports import print_to_stderr
from fedquilt_server.central.options import Epochs, Overrides, Threads
from fedquilt_server.central.plan import CENTRAL
from fedquilt_server.central.progress import train_in_folder
from fedquilt_server.status.summary import print_summary

app = CommandApp()


@app.callback()
def group() -> None:
    """Group the command, so that typer keeps its name."""


@app.command()
def central(
    experiment: Annotated[Path, typer.Argument(help="Experiment file (YAML).")],
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/NAME-central.")] = None,
    set_: Overrides = None,
    epochs: Epochs = None,
    threads: Threads = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to stderr.")] = False,
) -> None:
    """Train the experiment's model in one place on the samples of all clients: the baseline of a federated run.

    It trains without differential privacy, whatever the experiment has.

    The run folder is like that of other runs. Run the same command again to resume an interrupted run.
    """
    loaded = load_experiment(experiment, set_ or ())
    folder = out or Path("runs") / f"{loaded.name}-{CENTRAL}"
    with print_to_stderr(wanted=json_):
        result = train_in_folder(loaded, epochs, folder, threads)
    if result.status == "finished":
        if json_:
            typer.echo(result.model_dump_json(indent=2))
        else:
            print_summary(result, folder, {})
    raise typer.Exit(result.exit_code or 0)


def run(arguments: list[str]) -> None:
    """Run one command with its arguments."""
    app(arguments, prog_name="fedquilt")
