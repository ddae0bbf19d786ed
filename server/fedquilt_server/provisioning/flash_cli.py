"""The command ``fedquilt flash``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedquilt_common.errors import ExperimentError, FederationError, ImageError
from fedquilt_common.files.yaml_text import read_text
from fedquilt_server.provisioning.card import Card, read_wheels, read_wifi
from fedquilt_server.provisioning.cli import HERE, Folder, JsonFederation
from fedquilt_server.provisioning.devices import removable_device
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.flash import FlashResult, ProgressReporter, flash_device, flash_image, write_archive
from fedquilt_server.provisioning.kinds import KINDS, kind_of

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
WHEELHOUSE = Path("dist/wheelhouse-aarch64")


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``flash`` as a sub-command."""


@app.command()
def flash(
    image: Annotated[Path, typer.Argument(help="Stock image of Raspberry Pi OS or Ubuntu: .img, .img.xz or .img.gz.")],
    board: Annotated[str, typer.Option(help="Name of a provisioned board.")],
    folder: Folder = HERE,
    wifi: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with ssid, password and country (two letters).",
            show_default="the one of the board's line in `provision --from`",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Image file to write; for a Jetson, an archive: .tar or .tar.gz.")
    ] = None,
    device: Annotated[
        Path | None, typer.Option(help="Card to write, such as /dev/sdX. All data on it is lost.")
    ] = None,
    wheels: Annotated[Path, typer.Option(help="Wheelhouse, built with `make wheelhouse`.")] = WHEELHOUSE,
    no_wheels: Annotated[
        bool, typer.Option("--no-wheels", help="Without the software: you install it with Ansible.")
    ] = False,
    ssh_key: Annotated[
        Path | None, typer.Option(help="Public SSH key that can log in, for example for Ansible.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write a card without asking.")] = False,
    json_: JsonFederation = False,
) -> None:
    """Write a board's image from a stock image. The board connects by itself at its first start.

    The command writes identity, network, broker and software into the boot partition, and verifies every file.
    """
    if (out is None) == (device is None):
        raise typer.BadParameter("use either --out or --device")
    federation = Federation(folder)
    record = federation.board(board)
    if record.revoked is not None:
        raise FederationError(
            f"{board} is revoked: give it a new identity with `fedquilt provision {board} --kind {record.kind}`"
        )
    wifi = wifi or (federation.wifi_file(board) if federation.wifi_file(board).exists() else None)
    network, software = read_wifi(wifi) if wifi else None, _find_wheels(wheels, no_wheels, record.kind)
    user = record.user or "fedquilt-admin"
    card = Card(board, federation.board_folder(board), network, software, user, _read_keys(ssh_key))
    if device is not None:
        done = _flash_to_device(image, card, device, yes)
    elif out is not None and (kind_of(record.kind).jetson or out.name.endswith((".tar", ".tar.gz", ".tgz"))):
        done = _write_archive(image, card, out)
    else:
        with _progress() as report:
            done = flash_image(image, card, out or Path(), report)
    _print_result(
        replace(done, login=f"{user}@{record.host}" if card.keys and not kind_of(record.kind).jetson else ""), json_
    )


def _creates_login(card: Card, kind: str) -> bool:
    return bool(card.keys) and not kind_of(kind).jetson


def _flash_to_device(image: Path, card: Card, path: Path, yes: bool) -> FlashResult:
    device = removable_device(path)
    if not yes and not typer.confirm(f"All data on {device} will be lost. Write the card?", err=True):
        raise ImageError("nothing was written")
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        _progress() as report,
    ):  # not in /tmp: it may be in memory, and images are large
        return flash_device(image, card, device, Path(folder), report)


def _write_archive(image: Path, card: Card, out: Path) -> FlashResult:
    """Write an archive for a Jetson. The image itself is not changed."""
    if not image.exists():
        raise ImageError(f"{image}: there is no such file; check the path")
    if not out.name.endswith((".tar", ".tar.gz", ".tgz")):
        raise ImageError(
            f"{out}: an image for a Jetson has no boot partition to fill; write an archive for NVIDIA's flashing tool, "
            f"such as --out {card.board}.tar.gz (docs/deploy.md)"
        )
    with _progress() as report:
        return write_archive(card, out, report)


def _find_wheels(folder: Path, without: bool, kind: str) -> Path | None:
    if without:
        return None
    foreign = next(iter(read_wheels(folder).glob("*x86_64.whl")), None)
    if foreign is not None and kind in KINDS:
        raise FederationError(
            f"{folder}: {foreign.name} is for x86_64, but the board ({KINDS[kind].label}) is aarch64; build "
            "its wheelhouse with `make wheelhouse`"
        )
    return folder


def _read_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = [line.strip() for line in read_text(path).splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys or not all(key.startswith(("ssh-", "ecdsa-", "sk-")) for key in keys):
        raise ExperimentError(f"{path}: is not a public SSH key; use the .pub file")
    return keys


@contextmanager
def _progress() -> Iterator[ProgressReporter]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total or None)
            progress.update(tasks[step], completed=done)

        yield report


def _print_result(done: FlashResult, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(done), indent=2))
        return
    for warning in done.warnings:
        typer.echo(f"Note: {warning}", err=True)
    typer.echo(f"{done.target} is ready for {done.board}: {len(done.files)} files written and verified.")
    typer.echo(f"Login: ssh {done.login}" if done.login else "The card creates no login.")


def run(arguments: list[str]) -> None:
    """Run ``fedquilt flash`` with these arguments."""
    app(arguments, prog_name="fedquilt")
