"""The command ``fedquilt watch``."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from fedquilt_common.broker_options import check_federation
from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, RunFailedError, RunFolderError
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.terminal import make_console
from fedquilt_common.terminal_text import printable
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, parse_broker_url
from fedquilt_server.library.page_reader import PageReader
from fedquilt_server.runs.page_address import TOKEN_VARIABLE
from fedquilt_server.status.snapshot import ENDED, RunPhase, Snapshot
from fedquilt_server.status.terminal import describe_round
from fedquilt_server.watch.folder_source import folder_states
from fedquilt_server.watch.page_source import page_states
from fedquilt_server.watch.screen import describe_event, screen_lines
from fedquilt_server.watch.state import WatchSource, WatchState
from fedquilt_server.watch.threaded import ThreadedSource

app = CommandApp(no_args_is_help=False)
STEP_SECONDS: Final = 0.25
CLOCK_SECONDS: Final = 1.0
_ADDRESS: Final = re.compile(r"\w+://|\[?[\w.:-]+\]?:\d+(/|$)")
"""Start of a page's address: it has a scheme or a port."""
_ENDS: Final[dict[RunPhase, str]] = {
    "failed": "the run failed",
    "stopped": "the run was stopped",
    "interrupted": "the run was interrupted",
    "unknown": "nothing says whether the run has finished",
    "damaged": "the run's result is damaged",
}
"""How a run has ended that has not finished all rounds."""
PAGE_URL: Final = "http://127.0.0.1:8080/"


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``watch`` as a sub-command."""


@app.command()
def watch(
    target: Annotated[
        str, typer.Argument(help="Address of a status page, or a run folder.", show_default=PAGE_URL)
    ] = "",
    broker: Annotated[str, typer.Option(help="Watch the control messages of this broker instead of a page.")] = "",
    federation: Annotated[
        str, typer.Option(help="With --broker: name space at the broker.", callback=check_federation)
    ] = "default",
    ca: Annotated[str, typer.Option(help="With --broker: CA certificates (PEM) to verify the broker with.")] = "",
    cert: Annotated[str, typer.Option(help="With --broker: certificate (PEM) of the identity `watch`.")] = "",
    key: Annotated[str, typer.Option(help="With --broker: key of the certificate (PEM).")] = "",
    token: Annotated[str, typer.Option(help="Token of the page.", envvar=TOKEN_VARIABLE)] = "",
    once: Annotated[bool, typer.Option("--once", help="Show the state once, with all boards.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each change.")] = False,
) -> None:
    """Show a run live in the terminal, until it ends.

    The run comes from its status page, from its broker or from its folder. The command reconnects, and changes nothing.
    It ends with 0 when the run has finished, and with 7 when it ended in any other way.
    """
    if broker and target:
        raise ExperimentError(f"watch {target} --broker {broker}: give a page or folder, or a broker, not both")
    source = _broker(broker, federation, ca, cert, key) if broker else _page_or_folder(target, token, once=once)
    stop = StopSignal()
    with source:
        last = _print_once(source, stop, json_) if once else _follow(source, stop, json_)
    if stop():
        raise typer.Exit(stop.exit_code)
    if not once and last is not None:
        _end(last.snapshot)


def _broker(url: str, federation: str, ca: str, cert: str, key: str) -> WatchSource:
    from fedquilt_server.watch.broker_source import BrokerSource  # it loads half of the program

    address = parse_broker_url(url).with_files(ca, cert, key)
    return BrokerSource(address.with_password(os.environ.get(BROKER_PASSWORD, "")), federation)


def _page_or_folder(target: str, token: str, *, once: bool) -> WatchSource:
    if "://" not in target and Path(target or "/dev/null").is_dir():
        return ThreadedSource(folder_states(Path(target), token))
    if target and not _ADDRESS.match(target):
        raise RunFolderError(
            f"{target}: there is no such folder, and it is not an address of a page; write http://HOST:PORT "
            "or a run folder"
        )
    return ThreadedSource(page_states(PageReader(target or PAGE_URL, token), once=once))


def _end(snapshot: Snapshot) -> None:
    """Report how the run has ended.

    Raises:
        RunFailedError: it has not finished all rounds.
    """
    if snapshot.phase in _ENDS:
        raise RunFailedError(f"{_ENDS[snapshot.phase]}: {snapshot.message}")


def _print_once(source: WatchSource, stop: StopSignal, as_json: bool) -> WatchState | None:
    """Print the first complete state."""
    state = None
    while not stop() and (state is None or not source.complete):
        state = source.next(STEP_SECONDS) or state
    if state is not None and as_json:
        typer.echo(json_line(state, 0))
    elif state is not None:
        console = make_console()
        _print_lines(console, state)
    return state


def _print_lines(console: Console, state: WatchState) -> None:
    for line in screen_lines(state, time.time(), console.width, None, ascii_only=console.options.ascii_only):
        console.print(line, soft_wrap=True)


def _follow(source: WatchSource, stop: StopSignal, as_json: bool) -> WatchState | None:
    """Show every state until the run has ended or a signal arrives; returns the last one."""
    console = make_console()
    if not as_json and console.is_terminal and not console.is_dumb_terminal:
        return _show_live(source, stop, console)
    state: WatchState | None = None
    while not stop() and not has_ended(state):
        found = source.next(STEP_SECONDS)
        if found is not None:
            _print_change(state, found, as_json)
            state = found
    return state


def has_ended(state: WatchState | None) -> bool:
    """Whether the run has ended."""
    return state is not None and state.snapshot.phase in ENDED


def _show_live(source: WatchSource, stop: StopSignal, console: Console) -> WatchState | None:
    """Draw on the terminal's other screen, and leave the last state on the usual one."""
    state: WatchState | None = None
    drawn = 0.0

    def render() -> RenderableType:
        width, height = console.size
        if state is None:
            return "Connecting"
        return Group(*screen_lines(state, time.time(), width, height, ascii_only=console.options.ascii_only))

    with Live(get_renderable=render, console=console, auto_refresh=False, screen=True) as live:
        while not stop() and not has_ended(state):
            found = source.next(STEP_SECONDS)
            state = found or state
            if found is not None or time.monotonic() - drawn >= CLOCK_SECONDS:
                live.refresh()
                drawn = time.monotonic()
    if state is not None:
        _print_lines(console, state)
    return state


def _print_change(before: WatchState | None, state: WatchState, as_json: bool) -> None:
    """Print what is new in a state: a line of JSON, or lines of text."""
    known = before.snapshot.history if before and before.snapshot.run == state.snapshot.run else []
    if as_json:
        typer.echo(json_line(state, len(known)))
        return
    if state.trouble and state.trouble != (before.trouble if before else ""):
        typer.echo(printable(f"{state.trouble}; trying again"))
    for row in state.snapshot.history[len(known) :]:
        typer.echo(describe_round(row, state.snapshot.rounds))
    seen = before.snapshot.events[0].at if before and before.snapshot.events else 0.0
    for event in reversed([event for event in state.snapshot.events if event.at > seen]):
        typer.echo(printable(describe_event(event)))


def json_line(state: WatchState, known: int) -> str:
    """Return a state as one line of JSON: the snapshot with the rounds that are new, its source and its trouble."""
    snapshot = state.snapshot.model_copy(update={"history": state.snapshot.history[known:]})
    extra = {"source": state.source, "trouble": state.trouble, "unknown": state.unknown}
    return json.dumps({**extra, **json.loads(snapshot.model_dump_json(exclude={"reply_rows"}))})


def run(arguments: list[str]) -> None:
    """Run ``fedquilt watch`` with these arguments."""
    app(arguments, prog_name="fedquilt")
