"""The command ``fedquilt flash``."""

from __future__ import annotations

import base64
import json
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, FederationError, ImageError
from fedquilt_common.files.yaml_text import read_text
from fedquilt_common.terminal import make_console
from fedquilt_server.provisioning.card import Card, read_wheels, read_wifi
from fedquilt_server.provisioning.cli import HERE, Folder, JsonFederation
from fedquilt_server.provisioning.devices import removable_device
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.flash import (
    FlashResult,
    ProgressReporter,
    flash_device,
    flash_image,
    report_write_errors,
    require_stock,
    write_archive,
)
from fedquilt_server.provisioning.flash_all import CardTarget, flash_all
from fedquilt_server.provisioning.kinds import KINDS, kind_of
from fedquilt_server.provisioning.options import (
    FlashAllOption,
    FlashBoardOption,
    FlashDeviceOption,
    FlashForceOption,
    FlashImageOption,
    FlashNoWheelsOption,
    FlashOutOption,
    FlashSshKeyOption,
    FlashWheelsOption,
    FlashWifiOption,
    FlashYesOption,
)
from fedquilt_server.provisioning.record import BoardRecord
from fedquilt_server.provisioning.withdrawal import check_bundle

app = CommandApp()
WHEELHOUSE = Path("dist/wheelhouse-aarch64")
_KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
ARCHIVES = (".tar", ".tar.gz", ".tgz")
JETSON_WHEELHOUSE = Path("dist/wheelhouse-jetson")
"""Used for Jetsons instead of ``WHEELHOUSE`` if it exists: their torch comes from NVIDIA."""


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``flash`` as a sub-command."""


@app.command()
def flash(
    image: FlashImageOption = None,
    board: FlashBoardOption = "",
    all_: FlashAllOption = False,
    folder: Folder = HERE,
    wifi: FlashWifiOption = None,
    out: FlashOutOption = None,
    device: FlashDeviceOption = None,
    wheels: FlashWheelsOption = WHEELHOUSE,
    no_wheels: FlashNoWheelsOption = False,
    ssh_key: FlashSshKeyOption = None,
    force: FlashForceOption = False,
    yes: FlashYesOption = False,
    json_: JsonFederation = False,
) -> None:
    """Write a board's image from a stock image. The board connects by itself at its first start.

    The command writes identity, network, broker and software into the boot partition, and verifies every file.
    """
    if bool(board) == all_:
        raise typer.BadParameter("use either --board or --all")
    if (out is None) == (device is None) or (all_ and out is None):
        raise typer.BadParameter("use --out FOLDER with --all" if all_ else "use either --out or --device")
    federation, keys = Federation(folder), _read_keys(ssh_key)
    if all_ and out is not None:
        names = [name for name, record in sorted(federation.record.boards.items()) if record.revoked is None]
        cards = [_make_card(federation, name, wifi, wheels, no_wheels, keys) for name in names]
        targets = [_target(card, federation.board(card.board), out) for card in cards]
        _flash_all(image, targets, out, force, json_)
        return
    record, card = federation.board(board), _make_card(federation, board, wifi, wheels, no_wheels, keys)
    if device is not None:
        done = _flash_to_device(require_stock(image, board), card, device, yes)
    elif out is not None and (kind_of(record.kind).jetson or out.name.endswith(ARCHIVES)):
        done = _write_archive(image, card, out)
    else:
        with _progress() as report:
            done = flash_image(require_stock(image, board), card, out or Path(), report)
    _print_result(_with_login(done, card, record), json_)


def _with_login(done: FlashResult, card: Card, record: BoardRecord) -> FlashResult:
    """Return the result with the login that the card creates, if it creates one."""
    creates = bool(card.keys) and not kind_of(record.kind).jetson
    return replace(done, login=f"{card.user}@{record.host}" if creates else "")


def _make_card(
    federation: Federation, board: str, wifi: Path | None, wheels: Path, no_wheels: bool, keys: tuple[str, ...]
) -> Card:
    """Collect the files of a board's card.

    Raises:
        FederationError: the board is unknown or revoked, or its certificate is not the recorded one.
        ImageError: its wheelhouse cannot be used.
        ExperimentError: the wireless network cannot be read.
    """
    record, kept = federation.board(board), federation.wifi_file(board)
    if record.revoked is not None:
        raise FederationError(
            f"{board} is revoked: give it a new identity with `fedquilt provision {board} --renew` (and --clients, if "
            "another board hosts its clients now)"
        )
    check_bundle(federation.record, board, federation.board_folder(board) / "tls.crt")
    wifi = wifi or (kept if kept.exists() else None)
    if wheels == WHEELHOUSE and kind_of(record.kind).jetson and JETSON_WHEELHOUSE.exists():
        wheels = JETSON_WHEELHOUSE
    network, software = read_wifi(wifi) if wifi else None, _find_wheels(wheels, no_wheels, record.kind)
    user = record.user or "fedquilt-admin"
    return Card(board, federation.board_folder(board), network, software, user, keys)


def _target(card: Card, record: BoardRecord, out: Path) -> CardTarget:
    suffix = ".tar.gz" if kind_of(record.kind).jetson else ".img"
    return CardTarget(card, out / f"{card.board}{suffix}", record)


def _flash_all(image: Path | None, targets: list[CardTarget], out: Path, force: bool, as_json: bool) -> None:
    """Write the file of each board, and print what became of it."""
    if not targets:
        raise FederationError("there is no board to flash: run `fedquilt provision` first")
    rows, columns = [], (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as progress:
        whole, current = progress.add_task("boards", total=len(targets)), progress.add_task("", total=None)

        def report(step: str, done: int, total: int) -> None:
            progress.update(current, description=step, completed=done, total=total or None)

        for number, (target, done) in enumerate(flash_all(image, targets, out, report, force=force), 1):
            progress.update(whole, description=f"boards ({number} of {len(targets)})", completed=number)
            written = _with_login(done, target.card, target.record) if done else None
            what = asdict(written) if written else {"board": target.card.board, "target": str(target.out)}
            rows.append({"change": "written" if written else "unchanged", **what})
            if written and not as_json:
                _print_result(written, as_json)
            elif not as_json:
                typer.echo(f"{target.out} already has this content; --force writes it again.")
    if as_json:
        typer.echo(json.dumps(rows, indent=2))


def _flash_to_device(image: Path, card: Card, path: Path, yes: bool) -> FlashResult:
    device = removable_device(path)
    if not yes and not typer.confirm(f"All data on {device} will be lost. Write the card?", err=True):
        raise ImageError("nothing was written")
    with (
        report_write_errors(path),
        tempfile.TemporaryDirectory(dir=".") as folder,
        _progress() as report,
    ):  # not in /tmp: it may be in memory, and images are large
        return flash_device(image, card, device, Path(folder), report)


def _write_archive(image: Path | None, card: Card, out: Path) -> FlashResult:
    """Write an archive for a board without a boot partition."""
    if image is not None:
        raise ImageError(f"{out} is an archive, which is made without {image}: leave the image out")
    if not out.name.endswith(ARCHIVES):
        raise ImageError(
            f"{out}: a Jetson has no boot partition to fill; write an archive, such as --out {card.board}.tar.gz "
            "(docs/deploy.md)"
        )
    with _progress() as report:
        return write_archive(card, out, report)


def _find_wheels(folder: Path, without: bool, kind: str) -> Path | None:
    if without:
        return None
    foreign = next(iter(read_wheels(folder).glob("*x86_64.whl")), None)
    if foreign is not None and kind in KINDS:
        raise ImageError(
            f"{folder}: {foreign.name} is for x86_64, but the board ({KINDS[kind].label}) is aarch64; build "
            "its wheelhouse with `make wheelhouse`"
        )
    return folder


def _read_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = {number: line.strip() for number, line in enumerate(read_text(path).splitlines(), 1)}
    keys = {number: line for number, line in lines.items() if line and not line.startswith("#")}
    if not keys:
        raise ExperimentError(f"{path}: holds no public SSH key; use the .pub file")
    for number, line in keys.items():
        if not _is_public_key(line):
            raise ExperimentError(f"{path}, line {number}: is not a public SSH key; use the .pub file")
    return tuple(keys.values())


def _is_public_key(line: str) -> bool:
    """Whether a line has the type of a key and then the key in base64, which begins with its type again (RFC 4253)."""
    kind, _, rest = line.partition(" ")
    try:
        blob = base64.b64decode(rest.partition(" ")[0], validate=True)
    except ValueError:
        return False
    return kind.startswith(_KEY_TYPES) and blob.startswith(struct.pack(">I", len(kind)) + kind.encode())


@contextmanager
def _progress() -> Iterator[ProgressReporter]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as progress:
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
    if not done.target.endswith(ARCHIVES):
        typer.echo(f"Login: ssh {done.login}" if done.login else "The card creates no login.")


def run(arguments: list[str]) -> None:
    """Run ``fedquilt flash`` with these arguments."""
    app(arguments, prog_name="fedquilt")
