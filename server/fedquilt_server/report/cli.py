"""The commands ``fedquilt runs``, ``fedquilt compare`` and ``fedquilt report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_server.library.comparison import compare_runs, comparison_json
from fedquilt_server.library.recorded_run import find_runs, is_run_folder, name_runs, read_run
from fedquilt_server.library.run_list import run_json
from fedquilt_server.report.terminal_tables import print_comparison, print_report_summary, print_runs

app = CommandApp()
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DEFAULT_RUNS = Path("runs")


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds run folders, at any depth up to 6.")] = DEFAULT_RUNS,
    json_: Json = False,
) -> None:
    """List the runs below a folder: status, rounds, final score, time, bytes, start, and why a run is not finished."""
    found = name_runs([read_run(run) for run in find_runs(folder)])
    if json_:
        typer.echo(json.dumps([run_json(run) for run in found], indent=2))
    else:
        print_runs(found, folder)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two or more run folders.")],
    target: Annotated[
        float | None, typer.Option(help="Score, such as 0.9: compare what it cost to reach it.", show_default=False)
    ] = None,
    json_: Json = False,
) -> None:
    """Compare runs: scores, time, bytes and energy side by side, and the settings that differ.

    Exits with code 6 if a file of a run is damaged. The comparison then lacks what the file holds.
    """
    if len(folders) < 2:
        raise ExperimentError("compare: name two or more run folders")
    found = name_runs([read_run(existing(folder)) for folder in folders])
    comparison = compare_runs(found, target)
    if json_:
        typer.echo(json.dumps(comparison_json(comparison), indent=2))
    else:
        print_comparison(comparison)
    if damage := [text for run in found for text in run.damage]:
        raise RunFolderError("\n".join(damage))


@app.command()
def report(
    places: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, sweeps, or folders that hold runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder or file to write. Default: the folder `report`, in the sweep if you name one."),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="`html` (page, images and CSV), `md`, `latex` or `csv`.")
    ] = "html",
    published: Annotated[
        Path | None, typer.Option(help="YAML file with figures of papers, to show beside the runs' own.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Score, such as 0.9, whose costs are given. Default: the highest 0.05 step all reached."),
    ] = None,
    json_: Json = False,
) -> None:
    """Make a report of runs: mean and deviation over seeds, learning curves, clients, boards and coverage.

    Runs with equal settings, except for the seed, are averaged. Runs that are not finished are named, not averaged.
    """
    from fedquilt_server.report.make_report import ReportSettings, make_report
    from fedquilt_server.report.text_formats import to_json

    made = make_report(places, ReportSettings(out, format_, published, target))
    if json_:
        typer.echo(json.dumps({"files": [str(file) for file in made.files], **to_json(made.contents)}, indent=2))
    else:
        print_report_summary(made)


def existing(folder: Path) -> Path:
    """Return a run folder.

    Raises:
        RunFolderError: it is missing, or holds no run.
    """
    if not is_run_folder(folder):
        why = "holds no run" if folder.exists() else "there is no such folder"
        raise RunFolderError(f"{folder}: {why}; name a run folder, such as one that `fedquilt runs` lists")
    return folder


def run(arguments: list[str]) -> None:
    """Entry of the commands."""
    app(arguments, prog_name="fedquilt")
