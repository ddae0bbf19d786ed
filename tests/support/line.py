"""A long line between two brokers: it counts the bytes of each direction, and can be cut. TLS passes as it is."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

HOST = "127.0.0.1"


class Line:
    """Listens on ``port`` and relays each connection to a port of this machine.

    Attributes:
        port: where it listens.
        up: bytes that have passed to the other end since the beginning.
        down: bytes that have passed back.
        connections: connections that were accepted.
    """

    def __init__(self, target: int) -> None:
        self.up = self.down = self.connections = 0
        self._target = target
        self._open, self._pairs = True, set[tuple[socket.socket, socket.socket]]()
        self._lock = threading.Lock()
        self._server = self._listen(0)
        self.port: int = self._server.getsockname()[1]

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Reset all connections, and refuse new ones during the block.

        Nothing listens then: the broker of a site with Mosquitto 2.0.11 may turn in a loop without end if its
        connection is accepted first, and reset in the handshake.
        """
        self.close()
        yield
        with self._lock:
            self._server, self._open = self._listen(self.port), True

    def close(self) -> None:
        """Stop listening and reset all connections."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # a thread that accepts would keep it open
        self._server.close()
        with self._lock:
            self._open = False
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _reset(*pair)

    def _listen(self, port: int) -> socket.socket:
        server = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return server

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection((HOST, self._target))
        except OSError:
            near.close()
            return
        with self._lock:
            if not self._open:
                _reset(near, far)
                return
            self.connections += 1
            self._pairs.add((near, far))
        for name, source, sink in (("up", near, far), ("down", far, near)):
            threading.Thread(target=self._relay, args=(name, source, sink), daemon=True).start()

    def _relay(self, direction: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                # Before they leave, so that what has arrived is counted. One thread writes the number at a time.
                setattr(self, direction, getattr(self, direction) + len(data))
                sink.sendall(data)
        _reset(source, sink)


def _reset(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextlib.contextmanager
def line(target: int) -> Iterator[Line]:
    """Keep a line during a block."""
    made = Line(target)
    try:
        yield made
    finally:
        made.close()
