"""Visitors of a status page that do harm: they open many connections and do not behave."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from fedquilt_server.web import server as server_module
from fedquilt_server.web.server import WebServer

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
EVENTS = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
ATTACKS = {
    "half-open": (1100, b""),
    "slow headers": (600, HEAD),
    "slow readers of events": (600, EVENTS),
    "pipelined garbage": (300, HEALTH * 20 + b"\x16\x03\x01 garbage\r\n\r\n" * 20),
    "huge header": (300, HEAD + b"X-Long: " + b"a" * 100_000),
}
"""Number of connections of each attack, and the first bytes that each connection sends."""


class Visitors:
    """Many connections to a page. Used as a context manager, it closes them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[socket.socket] = []

    def __enter__(self) -> Visitors:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            connection.close()

    def come(self, count: int, first: bytes = b"") -> None:
        """Open ``count`` connections that send ``first`` and read nothing; the page may close any of them."""
        for _ in range(count):
            connection = socket.socket()
            self._open.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(10)
            with contextlib.suppress(OSError):
                connection.connect(("127.0.0.1", self._port))
                connection.setblocking(False)
                connection.send(first)

    def drip(self, text: bytes) -> None:
        """Send a few bytes on every connection that is still open."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.send(text)

    def answered(self) -> int:
        """Count the connections on which the page has sent something, unless ``closed`` has taken it."""
        return sum(map(_has_bytes, self._open))

    def closed(self) -> int:
        """Count the connections that the page has closed."""
        return sum(map(_is_closed, self._open))


def _has_bytes(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return bool(connection.recv(1, socket.MSG_PEEK))
    return False


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def attack(port: int, name: str) -> Iterator[Visitors]:
    """Begin one of the attacks; it ends with the ``with`` block."""
    count, first = ATTACKS[name]
    with Visitors(port) as visitors:
        visitors.come(count, first)
        yield visitors


def stops_at_once(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Stop a page that would wait for its visitors without end; returns whether it ends all the same."""
    monkeypatch.setattr(server_module, "STOP_SECONDS", 60.0)
    monkeypatch.setattr(server._server.config, "timeout_graceful_shutdown", None)
    thread = server._thread
    assert thread is not None
    server.stop()
    return not thread.is_alive()
