"""``fedquilt data``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedquilt_common.aggregation.rebalance import ThresholdRule
from fedquilt_common.cli import add_parts
from fedquilt_common.command_app import CommandApp
from fedquilt_common.data_tools.figures import FigureKind, write_figure
from fedquilt_common.data_tools.folder_facts import FileFacts
from fedquilt_common.data_tools.get_data import ReceivedFile, check_name, get_set
from fedquilt_common.data_tools.inspect_data import Inspection, inspect_target
from fedquilt_common.data_tools.list_data import list_sets
from fedquilt_common.data_tools.progress import describe_file, draw_sets, show_bytes, show_files
from fedquilt_common.data_tools.publish_data import explain_next_steps, publish_bundle, publish_manifest
from fedquilt_common.data_tools.shard_folder import write_shard_folder
from fedquilt_common.data_tools.tables import draw_groups, draw_set, plain_text
from fedquilt_common.datasets import FOLDER_VARIABLE, UNPREPARED, data_folder
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.terminal import make_console
from fedquilt_common.user_imports import print_to_stderr

app = CommandApp()
data_app = CommandApp(help="List, download, inspect, partition and publish data sets.")
app.add_typer(data_app, name="data")

FolderOfSets = Annotated[
    Path | None, typer.Option("--data", help=f"Folder of data sets. Default: {FOLDER_VARIABLE}.", show_default=False)
]
JsonFacts = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AllowedPackages = Annotated[
    list[str] | None, typer.Option("--allow-import", help="Package that may be imported for your own data set.")
]
_MOST_CLASSES: Final = 60


@app.callback()
def group() -> None:
    """Keep ``data`` a sub-command."""


@data_app.command("list")
def list_(data: FolderOfSets = None, json_: JsonFacts = False) -> None:
    """List the data sets: task, licence, size, and which files are on this machine."""
    sets = list_sets(data or data_folder())
    if json_:
        typer.echo(json.dumps([asdict(entry) for entry in sets], indent=2))
    else:
        make_console(soft_wrap=True).print(draw_sets(sets))


@data_app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A data set of `fedquilt data list`.")],
    data: FolderOfSets = None,
    url: Annotated[
        str | None, typer.Option(help="A mirror: the file's address, or that of a folder of the files, ending in /.")
    ] = None,
    json_: JsonFacts = False,
) -> None:
    """Download a data set from its publisher, check it, and unpack it where a loader needs folders.

    Interrupted, the same command resumes. Exit code 12: a person has to do something; the message has the steps.
    """
    check_name(name)
    if name in UNPREPARED:
        return typer.echo("[]" if json_ else f"{name}: comes with a Python package, so there is nothing to download")
    root = data or data_folder()
    if root is None:
        raise DataUnavailableError(f"data get {name}: set {FOLDER_VARIABLE} to a folder for data sets, or give --data")
    files = list[ReceivedFile]()
    try:
        with show_bytes(visible=not json_) as on_file:
            for file in get_set(name, root, url, on_file):
                files.append(file)
                if not json_:
                    typer.echo(describe_file(file))
    finally:
        if json_:
            typer.echo(json.dumps([asdict(file) for file in files], indent=2))


@data_app.command("inspect")
def inspect_(
    target: Annotated[str, typer.Argument(help="A data set, an experiment's YAML file, or a folder.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="New value of an experiment's key, such as data.clients=10.")
    ] = None,
    rebalanced: Annotated[
        ThresholdRule | None, typer.Option(help="Show FedReb's rebalanced data sets with this threshold.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a figure of the clients' samples.")] = None,
    figure: Annotated[
        FigureKind | None,
        typer.Option(help="With --png: bars as in the FedReb thesis (default), or bubbles as in FedAKD's."),
    ] = None,
    allow: AllowedPackages = None,
    json_: JsonFacts = False,
) -> None:
    """Count samples, shapes and classes, of an experiment also for each client.

    A folder needs no FEDQUILT_DATA. If it holds only a part of a data set, its files are described.
    """
    if figure is not None and png is None:
        raise ExperimentError(f"--figure {figure}: there is no file for it; add --png FILE")
    with print_to_stderr(wanted=json_):
        found = inspect_target(target, allow or [], overrides or [], rebalanced)
    if json_:
        typer.echo(json.dumps(asdict(found), indent=2, allow_nan=False))
    else:
        _print_inspection(found, make_console())
    if png is not None:
        if found.clients is None:
            raise ExperimentError(f"--png: {target} holds no data set whose samples can be counted; leave it out")
        png.parent.mkdir(parents=True, exist_ok=True)
        write_figure(png, found.clients, found.what, found.title, figure or "bars")
        typer.echo(f"wrote {png}", err=True)


@data_app.command("partition")
def partition(
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="New value of an experiment's key, such as data.clients=10.")
    ] = None,
    allow: AllowedPackages = None,
    json_: JsonFacts = False,
) -> None:
    """Write a file with the samples of each client, and a manifest with their digests.

    Interrupted, the same command resumes. The same experiment and data give the same bytes on every machine.
    """
    tools = ExperimentTools(load_experiment(experiment, overrides or []), allow or [])
    with print_to_stderr(wanted=json_), show_files("clients", visible=not json_) as on_shard:
        _ = tools.learns and tools.shares  # raises if the boards have the samples
        manifest = write_shard_folder(tools, out, on_shard)
    if json_:
        typer.echo(manifest.encode(), nl=False)
    else:
        typer.echo(f"{out}: {len(manifest.files)} files for {manifest.clients} clients, {decimal(manifest.size)}")


@data_app.command("publish")
def publish(
    folder: Annotated[Path, typer.Argument(help="A folder that `fedquilt data partition` has written.")],
    out: Annotated[
        Path,
        typer.Option(help="A new folder, or a new file that ends in .tar or .zip; with --addresses, the manifest."),
    ],
    addresses: Annotated[
        Path | None,
        typer.Option(help="A file with lines name,address: only write a manifest for files that are uploaded already."),
    ] = None,
    json_: JsonFacts = False,
) -> None:
    """Make a bundle of the clients' samples, for a web server or Google Drive, and print what to do with it."""
    bundle = publish_bundle(folder, out) if addresses is None else publish_manifest(folder, addresses, out)
    if json_:
        typer.echo(json.dumps({**asdict(bundle), "path": str(bundle.path)}, indent=2))
    else:
        typer.echo(f"{bundle.path}: {bundle.files} files, {decimal(bundle.size)}\n\n{explain_next_steps(bundle)}")


def _print_inspection(found: Inspection, console: Console) -> None:
    for summary in found.sets:
        for part in draw_set(summary):
            console.print(part)
    for name, why in found.problems:
        console.print(plain_text(f"{name}: cannot be loaded from here: {why}"), soft_wrap=True)
    for name, files in found.missing:
        console.print(plain_text(f"{name}: not there: {', '.join(files)}"), soft_wrap=True)
    if found.files and not found.sets:
        console.print(_draw_files(found.files))
        for file in found.files:
            _print_classes(file, console)
    if found.clients is not None and found.what != "part":
        console.print()
        console.print(draw_groups(found.clients, found.what, console.width))


def _draw_files(files: tuple[FileFacts, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("files", "size", "path", "contents"):
        table.add_column(heading, justify="right" if heading in ("files", "size") else "left")
    for file in files:
        table.add_row(f"{file.files:,}", decimal(file.size), plain_text(file.path), plain_text(file.what))
    return table


def _print_classes(file: FileFacts, console: Console) -> None:
    if file.classes:
        shown = list(file.classes.items())[:_MOST_CLASSES]
        words = ", ".join(f"{name} {count:,}" for name, count in shown)
        console.print(plain_text(f"{file.path}: {len(file.classes)} classes: {words}"), soft_wrap=True)


add_parts("data", data_app)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt data`` with these arguments."""
    app(arguments, prog_name="fedquilt")
