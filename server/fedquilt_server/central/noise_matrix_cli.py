"""The command ``fedquilt data noise-matrix``. It imports the rest of the server when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedquilt_common.errors import ExperimentError
from fedquilt_common.files.targets import refuse_folder
from fedquilt_common.user_imports import print_to_stderr
from fedquilt_server.central.options import Epochs, Overrides, Threads
from fedquilt_server.status.units import percent

if TYPE_CHECKING:
    from fedquilt_common.experiment.experiment import Experiment
    from fedquilt_common.types import Arrays
    from fedquilt_server.central.noise_matrix import NoiseMatrix


def add_to(group: typer.Typer) -> None:
    """Add the command to a group of commands."""
    group.command("noise-matrix")(noise_matrix)


def noise_matrix(
    source: Annotated[Path, typer.Argument(help="Experiment file (YAML), or the folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="CSV file to write, below the folder in FEDQUILT_DATA.")],
    set_: Overrides = None,
    epochs: Epochs = None,
    split: Annotated[
        Literal["train", "test"], typer.Option(help="Official samples that the model labels; it knows those of train.")
    ] = "test",
    run_folder: Annotated[
        Path | None, typer.Option(help="Run folder of the training; default runs/NAME-noise-matrix.")
    ] = None,
    threads: Threads = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print the matrix as JSON; progress goes to stderr.")] = False,
) -> None:
    """Measure how a centrally trained model mistakes the classes, as the matrix of data.label_noise (FedAIoT).

    Trains the experiment's model as `fedquilt central` does, with the right labels, or takes the model of a run.
    """
    from fedquilt_server.central.noise_matrix import measure_confusions, read_trained, write_matrix

    refuse_folder(out, "--out")
    with print_to_stderr(wanted=json_):
        if source.is_dir():
            _refuse_for_folder(set_, epochs, run_folder)
            experiment, model = read_trained(source)
        else:
            experiment, model = _train(source, set_ or [], epochs, run_folder, threads)
        matrix = measure_confusions(experiment, model, split)
    rows = matrix.rows.tolist()
    write_matrix(out, rows)
    if json_:
        found = {"samples": matrix.samples, "accuracy": matrix.accuracy, "unmistaken": matrix.unmistaken}
        typer.echo(json.dumps({"file": str(out), "split": split, **found, "matrix": rows}, indent=2))
    else:
        _print_matrix(out, matrix, split)


def _refuse_for_folder(overrides: list[str] | None, epochs: int | None, run_folder: Path | None) -> None:
    given = {"--set": overrides, "--epochs": epochs, "--run-folder": run_folder}
    if wrong := [name for name, value in given.items() if value]:
        raise ExperimentError(f"{wrong[0]}: the run has a trained model already; leave it out, or name an experiment")


def _train(
    file: Path, overrides: list[str], epochs: int | None, folder: Path | None, threads: int
) -> tuple[Experiment, Arrays]:
    """Train centrally with the right labels; a signal ends the command with its exit code."""
    from fedquilt_common.experiment_file import load_experiment
    from fedquilt_server.central.noise_matrix import check_classes, read_trained, without_label_noise
    from fedquilt_server.central.progress import train_in_folder
    from fedquilt_server.lab.workbench import Workbench

    experiment = without_label_noise(load_experiment(file, overrides))
    check_classes(Workbench(experiment))
    folder = folder or Path("runs") / f"{experiment.name}-noise-matrix"
    result = train_in_folder(experiment, epochs, folder, threads)
    if result.status != "finished":
        raise typer.Exit(result.exit_code or 1)
    return read_trained(folder)


def _print_matrix(path: Path, matrix: NoiseMatrix, split: str) -> None:
    from fedquilt_common.datasets import FOLDER_VARIABLE, data_folder

    typer.echo(f"{path}: the model labels {percent(matrix.accuracy, 2)} of {matrix.samples} {split} samples right")
    folder = data_folder()
    inside = folder is not None and path.resolve().is_relative_to(folder.resolve())
    name = path.resolve().relative_to(folder.resolve()) if folder is not None and inside else path.name
    where = "" if inside else f". Copy the file into the folder in {FOLDER_VARIABLE} first"
    typer.echo(f"Use it with data.label_noise: {{kind: matrix, ratio: 0.1, file: {name}}}{where}")
    if matrix.unmistaken:
        classes = ", ".join(map(str, matrix.unmistaken))
        why = "the model mistakes none of their samples, or there is none"
        typer.echo(f"Note: labels of the classes {classes} never become wrong: {why}")
