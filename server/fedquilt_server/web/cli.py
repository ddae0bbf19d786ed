"""The command ``fedquilt page``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer
from fastapi import FastAPI

from fedquilt_common.command_app import CommandApp
from fedquilt_common.plurals import counted
from fedquilt_common.process.file_limit import raise_file_limit
from fedquilt_common.process.signals import StopSignal
from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.status.console import print_message
from fedquilt_server.web.access import choose_reader_access
from fedquilt_server.web.connections import connection_limit
from fedquilt_server.web.hosts import HostNames
from fedquilt_server.web.library_app import create_library_app
from fedquilt_server.web.options import AllowHost
from fedquilt_server.web.server import WebServer

app = CommandApp(no_args_is_help=False)
DEFAULT_RUNS: Final = Path("runs")
STEP_SECONDS: Final = 0.2


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``page`` as a sub-command."""


@app.command()
def page(
    folder: Annotated[Path, typer.Argument(help="Folder that holds run folders, at any depth up to 6.")] = DEFAULT_RUNS,
    host: Annotated[str, typer.Option(help="Address of the page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 chooses a free one.")] = 8090,
    allow_host: AllowHost = None,
    public_page: Annotated[
        bool, typer.Option("--public-page", help="Let everybody who reaches the page read it without a token.")
    ] = False,
) -> None:
    """Show the runs below a folder in a browser: list, search, compare, and the status page of each run.

    The page follows runs that go on, and changes nothing. Ctrl-C ends it. Other machines need the token in
    FEDQUILT_PAGE_TOKEN to read it.
    """
    access = choose_reader_access(host, public=public_page)
    library = RunLibrary(folder)
    found = len(library.list())
    stop = StopSignal()
    connections = connection_limit(raise_file_limit())

    def make_app(names: HostNames) -> FastAPI:
        return create_library_app(library, names, connections, access)

    server = WebServer(make_app, host, port, allow_host or (), connections)
    with server:
        print_message(f"The page of {counted(found, 'run')} in {folder} is at {server.url}; Ctrl-C ends it")
        while not stop():
            time.sleep(STEP_SECONDS)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt page`` with these arguments."""
    app(arguments, prog_name="fedquilt")
