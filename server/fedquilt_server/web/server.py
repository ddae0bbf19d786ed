"""Runs the status page in a thread beside the coordinator."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from fedquilt_server.status.page_listener import PageAddressError, open_listener
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.access import Access
from fedquilt_server.web.app import create_app
from fedquilt_server.web.connections import MOST_CONNECTIONS, PageConnection, accept_backlog
from fedquilt_server.web.control import RequestControl
from fedquilt_server.web.hosts import HostNames

START_SECONDS = 10.0
STOP_SECONDS = 5.0
WAITING_CONNECTIONS = 1024
KEEP_ALIVE_SECONDS = 5
"""Seconds for which an idle connection stays open for the next request."""
_log = logging.getLogger(__name__)
_OPEN_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


Server = TypeVar("Server", bound="WebServer")


class WebServer:
    """Serves an application until ``stop``. It is also a context manager.

    Args:
        make_app: creates the application for the names under which visitors may reach it.
        host: the address to listen on.
        port: the port to listen on; 0 for any free one.
        allowed_hosts: more names under which visitors may reach the page, see ``is_trusted``.
        connections: how many connections the page may hold, see ``connection_limit``.

    Attributes:
        url: the address for a browser on this machine; empty before ``start``.
    """

    def __init__(
        self,
        make_app: Callable[[HostNames], FastAPI],
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Iterable[str] = (),
        connections: int = MOST_CONNECTIONS,
    ) -> None:
        self.url = ""
        self._host, self._port = host, port
        self._names = HostNames(allowed_hosts)
        self._app = make_app(self._names)
        self._server = uvicorn.Server(_config(self._app, connections))
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the server, and return when it accepts requests.

        Raises:
            PortInUseError: another program uses the port.
            PageAddressError: this machine cannot listen on the address, or the server did not start.
        """
        # Bind here, because uvicorn would end the process if the port is in use.
        listener = open_listener(self._host, self._port)
        self.url = _url(self._host, listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, args=(listener,), name="status-page", daemon=True)
        self._thread.start()
        self._names.look_up()
        self._wait_started()
        # asyncio accepts as many connections at a time as its backlog. More may wait, so that the kernel drops none.
        listener.listen(WAITING_CONNECTIONS)

    def stop(self) -> None:
        """Close the event streams and the port. It does nothing if the server is not running."""
        self._app.state.closing.set()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def __enter__(self: Server) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self, listener: socket.socket) -> None:
        try:
            with listener:
                self._server.run(sockets=[listener])
        except Exception:
            _log.exception("The status page failed. A run continues without it; restart the program to see it")

    def _wait_started(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline or not (self._thread and self._thread.is_alive()):
                raise PageAddressError(f"The status page did not start on {self.url}. See the log for the reason.")
            time.sleep(0.01)


class PageServer(WebServer):
    """Serves the page of one run.

    Args:
        store: where the coordinator writes the snapshots.
        host: the address to listen on.
        port: the port to listen on; 0 for any free one.
        allowed_hosts: more names under which visitors may reach the page, see ``is_trusted``.
        connections: how many connections the page may hold, see ``connection_limit``.
        access: who may read and control, see ``create_app``.
        request_control: passes control requests to the coordinator.
        folder: the run folder, for downloads and for comparisons with the runs beside it.
    """

    def __init__(
        self,
        store: StatusStore,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Iterable[str] = (),
        connections: int = MOST_CONNECTIONS,
        access: Access | None = None,
        request_control: RequestControl | None = None,
        folder: Path | None = None,
    ) -> None:
        def make_app(names: HostNames) -> FastAPI:
            return create_app(store, names, connections, access, request_control, folder)

        super().__init__(make_app, host, port, allowed_hosts, connections)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn is not the traceback of a request that it has cut, because the run ends."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _config(app: object, connections: int) -> uvicorn.Config:
    """Configure uvicorn: bounded connections, and at most two seconds for open requests when the run ends."""
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=PageConnection,
        ws="none",
        # No warnings: every invalid request would be one, so that a visitor could fill the disk with them.
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        limit_concurrency=connections,
        backlog=accept_backlog(connections),
    )


def _url(host: str, port: int) -> str:
    """Return a URL that a browser on this machine can open."""
    shown = "127.0.0.1" if host in _OPEN_HOSTS else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
