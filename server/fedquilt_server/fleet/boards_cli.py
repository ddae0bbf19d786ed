"""The command ``fedquilt boards``: list the identities, or watch the boards."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Annotated, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedquilt_common.command_app import CommandApp
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.terminal import make_console
from fedquilt_common.terminal_text import printable
from fedquilt_common.wide_tables import print_whole
from fedquilt_common.wire.messages import IDLE_TELEMETRY_SECONDS
from fedquilt_server.fleet.health import silent_boards
from fedquilt_server.fleet.listener import FleetListener
from fedquilt_server.fleet.watch_table import describe_change, health_table
from fedquilt_server.provisioning.board_rows import board_row, kind_label
from fedquilt_server.provisioning.cli import HERE, Folder, JsonFederation
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.renewal import certificate_ends, describe_ends

app = CommandApp()
HEALTH_SECONDS: Final = IDLE_TELEMETRY_SECONDS + 5.0
"""Seconds to wait for the boards' health: until an idle board reports it, and for the way."""
NOTE_SECONDS: Final = 1.0
"""Seconds after which ``--once`` reports which boards it waits for."""
STEP_SECONDS: Final = 0.25


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``boards`` as a sub-command."""


@app.command()
def boards(
    folder: Folder = HERE,
    watch: Annotated[bool, typer.Option("--watch", help="Show the state and health of the boards, live.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Show the state and health once, when every connected board has reported it.")
    ] = False,
    broker: Annotated[
        str, typer.Option(help="With --watch or --once: the broker's URL.", show_default="the one that the boards use")
    ] = "",
    json_: JsonFederation = False,
) -> None:
    """List the boards, their clients and the end of their certificates, or watch their health.

    With --watch --json, the command prints one line of JSON for each board and then for each change.
    """
    federation = Federation(folder)
    if once:
        _print_once(federation, broker, json_)
    elif watch:
        _watch(federation, broker, json_)
    else:
        _print_records(federation, json_)


def _print_records(federation: Federation, as_json: bool) -> None:
    rows = [board_row(name, board) for name, board in sorted(federation.record.boards.items())]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table()
    for column in ("board", "kind", "clients", "host", "good until", "state"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        cells = [row["board"], kind_label(row["kind"]), row["clients"], row["host"], row["until"][:10], row["state"]]
        table.add_row(*map(Text, map(printable, cells)))
    print_whole(table)
    for line in describe_ends(certificate_ends(federation), datetime.now(timezone.utc)):
        typer.echo(line)


def _print_once(federation: Federation, url: str, as_json: bool) -> None:
    """Print one snapshot."""
    stop = StopSignal()
    with FleetListener(federation, url) as listener:
        _await_health(listener, stop)
    if stop():
        raise typer.Exit(stop.exit_code)
    found = list(listener.boards.values())
    if as_json:
        typer.echo(json.dumps([board.as_row() for board in found], indent=2))
    else:
        console = make_console()
        print_whole(health_table(found, time.time(), "", console.width if console.is_terminal else None))


def _await_health(listener: FleetListener, stop: StopSignal) -> None:
    """Wait until every connected board has reported its health, for ``HEALTH_SECONDS`` at most."""
    start, noted = time.monotonic(), False
    while not stop():
        listener.take(STEP_SECONDS, time.time())
        waited = time.monotonic() - start
        missing = silent_boards(listener.boards.values())
        if waited >= HEALTH_SECONDS or (listener.complete and not missing):
            return
        if missing and not noted and waited >= NOTE_SECONDS:
            noted = True
            typer.echo(
                f"Waiting up to {HEALTH_SECONDS:.0f} s for the health of {', '.join(missing)}. An idle board reports "
                f"it every {IDLE_TELEMETRY_SECONDS:.0f} s",
                err=True,
            )


def _watch(federation: Federation, url: str, as_json: bool) -> None:
    """Show every change until a signal arrives: as lines of JSON, as a live table, or as lines of text in a pipe."""
    stop, console = StopSignal(), make_console()
    with FleetListener(federation, url) as listener:
        if as_json:
            _print_changes(listener, stop)
        elif console.is_terminal:
            _show_live(listener, stop, console)
        else:
            _print_states(listener, stop)
    raise typer.Exit(stop.exit_code)


def _print_changes(listener: FleetListener, stop: StopSignal) -> None:
    while not (stop() or listener.complete):
        listener.take(STEP_SECONDS, time.time())
    for board in listener.boards.values():
        typer.echo(json.dumps(board.as_row()))
    while not stop():
        if (changed := listener.take(STEP_SECONDS, time.time())) is not None:
            typer.echo(json.dumps(changed.as_row()))


def _print_states(listener: FleetListener, stop: StopSignal) -> None:
    while not stop():
        before = dict(listener.boards)
        changed = listener.take(STEP_SECONDS, time.time())
        if changed is not None and (line := describe_change(before.get(changed.board), changed)):
            typer.echo(line)


def _show_live(listener: FleetListener, stop: StopSignal, console: Console) -> None:
    def table() -> RenderableType:
        return health_table(list(listener.boards.values()), time.time(), listener.trouble, *console.size)

    with Live(get_renderable=table, console=console, refresh_per_second=4):
        while not stop():
            listener.take(STEP_SECONDS, time.time())


def run(arguments: list[str]) -> None:
    """Run ``fedquilt boards`` with these arguments."""
    app(arguments, prog_name="fedquilt")
