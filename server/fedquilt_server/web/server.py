"""Runs the status page in a thread beside the coordinator."""

from __future__ import annotations

import errno
import socket
import threading
import time

import uvicorn

from fedquilt_common.errors import FedquiltError
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.app import create_app

START_SECONDS = 10.0
STOP_SECONDS = 5.0
_OPEN_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class PortInUseError(FedquiltError):
    """Another program uses the status page's port."""


class PageAddressError(FedquiltError):
    """The status page cannot listen on the given address."""


class PageServer:
    """Serves the page on ``host`` and ``port`` (0: any free port) until ``stop``. It is also a context manager.

    Attributes:
        url: the address for a browser on this machine; empty before ``start``.
    """

    def __init__(self, store: StatusStore, host: str = "127.0.0.1", port: int = 0) -> None:
        self.url = ""
        self._app = create_app(store)
        self._host, self._port = host, port
        self._server = uvicorn.Server(_config(self._app))
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
        self._wait_started()

    def stop(self) -> None:
        """Close the event streams and the port. It does nothing if the server is not running."""
        self._app.state.closing.set()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def __enter__(self) -> PageServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self, listener: socket.socket) -> None:
        with listener:
            self._server.run(sockets=[listener])

    def _wait_started(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline or not (self._thread and self._thread.is_alive()):
                raise PageAddressError(f"The status page did not start on {self.url}. See the log for the reason.")
            time.sleep(0.01)


def _config(app: object) -> uvicorn.Config:
    """Configure uvicorn: warnings only, and at most two seconds for open requests when the run ends."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        limit_concurrency=256,
    )


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        PortInUseError: another program uses the port.
        PageAddressError: this machine cannot listen on the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise _address_error(error, host, port) from error


def _address_error(error: OSError, host: str, port: int) -> FedquiltError:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"The status page cannot use port {port} on {host}: another program uses it. "
            "Choose another port, or 0 for any free port. The other program may be a coordinator that is still running."
        )
    return PageAddressError(
        f"The status page cannot listen on {host} port {port}: {error.strerror or error}. "
        "Use an address of this machine (127.0.0.1, or 0.0.0.0 for all its addresses) and a port of 1024 or above."
    )


def _url(host: str, port: int) -> str:
    """Return a URL that a browser on this machine can open."""
    shown = "127.0.0.1" if host in _OPEN_HOSTS else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
