"""``fedquilt flash``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedquilt_common.errors import ExperimentError, FederationError, ImageError
from fedquilt_common.files.yaml_text import read_text
from fedquilt_server.provisioning.card import Card, read_wheels, read_wifi
from fedquilt_server.provisioning.cli import HERE, Folder, Json
from fedquilt_server.provisioning.devices import removable_device
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.flash import Flashed, Tell, flash_device, flash_image, write_archive
from fedquilt_server.provisioning.kinds import KINDS, kind_of

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
WHEELHOUSE = Path("dist/wheelhouse-aarch64")


@app.callback()
def group() -> None:
    """Keep ``flash`` a sub-command."""


@app.command()
def flash(
    image: Annotated[Path, typer.Argument(help="Stock image: Raspberry Pi OS, Ubuntu; .img, .img.xz or .img.gz.")],
    board: Annotated[str, typer.Option(help="Name of a board that has been provisioned.")],
    folder: Folder = HERE,
    wifi: Annotated[Path | None, typer.Option(help="YAML file with ssid, password and country (two letters).")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write an image file; for a Jetson an archive, .tar or .tar.gz.")
    ] = None,
    device: Annotated[
        Path | None, typer.Option(help="Write a card, such as /dev/sdX. Everything on it is lost.")
    ] = None,
    wheels: Annotated[Path, typer.Option(help="Wheelhouse, as `make wheelhouse` makes it.")] = WHEELHOUSE,
    no_wheels: Annotated[bool, typer.Option("--no-wheels", help="Leave the software to Ansible.")] = False,
    ssh_key: Annotated[Path | None, typer.Option(help="Public key of whoever may log in, such as for Ansible.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a card is written.")] = False,
    json_: Json = False,
) -> None:
    """Make a stock image a board's own, so that it joins by itself when it is first switched on.

    Identity, network, broker and software go into its boot partition, and everything is read back.
    """
    if (out is None) == (device is None):
        raise typer.BadParameter("give one of --out and --device")
    federation = Federation(folder)
    known = federation.board(board)
    if known.revoked is not None:
        raise FederationError(f"{board} is revoked: `fedquilt provision {board} --kind {known.kind}` makes it anew")
    network, software = read_wifi(wifi) if wifi else None, _wheels(wheels, no_wheels, known.kind)
    user = known.user or "fedquilt-admin"
    card = Card(board, federation.board_folder(board), network, software, user, _keys(ssh_key))
    if device is not None:
        done = _to_device(image, card, device, yes)
    elif out is not None and (kind_of(known.kind).jetson or out.name.endswith((".tar", ".tar.gz", ".tgz"))):
        done = _archive(image, card, out)
    else:
        with _progress() as tell:
            done = flash_image(image, card, out or Path(), tell)
    _tell(done, json_)


def _to_device(image: Path, card: Card, path: Path, yes: bool) -> Flashed:
    device = removable_device(path)
    if not yes and not typer.confirm(f"Everything on {device} will be lost. Write it?", err=True):
        raise ImageError("nothing was written")
    with tempfile.TemporaryDirectory(dir=".") as folder, _progress() as tell:  # /tmp may be memory, images are large
        return flash_device(image, card, device, Path(folder), tell)


def _archive(image: Path, card: Card, out: Path) -> Flashed:
    """A Jetson's own image is left as it is."""
    if not image.exists():
        raise ImageError(f"{image}: there is no such file; check the path")
    if not out.name.endswith((".tar", ".tar.gz", ".tgz")):
        raise ImageError(
            f"{out}: an image for a Jetson has no partition that could be filled; name an archive, such as "
            f"--out {card.board}.tar.gz, for NVIDIA's flashing tool (docs/deploy.md)"
        )
    with _progress() as tell:
        return write_archive(card, out, tell)


def _wheels(folder: Path, without: bool, kind: str) -> Path | None:
    if without or (folder == WHEELHOUSE and not folder.exists()):
        return None
    foreign = next(iter(read_wheels(folder).glob("*x86_64.whl")), None)
    if foreign is not None and kind in KINDS:
        raise FederationError(f"{folder}: {foreign.name} is for PCs, but a {KINDS[kind].label} is aarch64")
    return folder


def _keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = [line.strip() for line in read_text(path).splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys or not all(key.startswith(("ssh-", "ecdsa-", "sk-")) for key in keys):
        raise ExperimentError(f"{path}: is no public SSH key; name the .pub file")
    return keys


@contextmanager
def _progress() -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total or None)
            progress.update(tasks[what], completed=done)

        yield tell


def _tell(done: Flashed, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(done), indent=2))
        return
    for warning in done.warnings:
        typer.echo(f"Note: {warning}", err=True)
    typer.echo(f"{done.target} is {done.board}'s: {len(done.files)} files, read back and found right.")


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt flash``."""
    app(arguments, prog_name="fedquilt")
