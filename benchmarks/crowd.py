"""Boards that only send telemetry, and readers of a status page; ``readers.py`` starts each as a process of its own.

    python benchmarks/crowd.py boards PORT FEDERATION COUNT  boards that join, and each send telemetry once a second
    python benchmarks/crowd.py readers PAGE COUNT            pages; the last one reads slowly

Both run until their standard input ends. Each line that the readers receive there opens the pages, or closes them if
they are open; they answer with a line: the bytes that each page has received since it was opened.
"""

from __future__ import annotations

import itertools
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx

from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.messages import AgentPresence, ProfileMessage, Telemetry
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics

NAMES_PER_SECOND = 20
"""The coordinator mutes new names that come much faster."""
SLOW_BYTES, SLOW_SECONDS = 1024, 0.25
"""The slow reader takes this many bytes at a time, and pauses this long: much less than the page sends."""


def is_ended() -> Callable[[], bool]:
    """Return a function that returns True once standard input has ended."""
    waiting = threading.Thread(target=sys.stdin.read, daemon=True)
    waiting.start()
    return lambda: not waiting.is_alive()


def presence(name: str) -> AgentPresence:
    """Return the presence of a board without clients."""
    profile = ProfileMessage(kind="crowd", cores=4, memory=8 << 30)
    return AgentPresence(agent=name, online=True, boot=1, profile=profile)


def telemetry(name: str, second: int) -> Telemetry:
    """Return telemetry in which all readings have changed since the second before."""
    wave = 0.5 + 0.5 * math.sin(second + hash(name))
    return Telemetry(
        agent=name, boot=1, memory_used=int(wave * (1 << 33)), memory_own=int(wave * (1 << 30)), load=4 * wave,
        temperature=40 + 30 * wave, power=3 + 6 * wave, joules=6.0 * second, power_source="sensor", interval=5.0,
    )  # fmt: skip


def send_telemetry(port: int, federation: str, count: int) -> None:
    """Let boards join one after another, then send the telemetry of each once a second, spread evenly.

    All boards share one connection, so that they cost this machine little; the coordinator cannot see that.
    """
    topics, ended = Topics(federation), is_ended()
    transport = MqttTransport(parse_broker_url(f"mqtt://127.0.0.1:{port}"), "crowd", lambda _: None)
    transport.connect()
    names = [f"crowd-{number}" for number in range(count)]
    for name in names:
        transport.publish(topics.presence(name), presence(name).encode(), retain=True)
        time.sleep(1 / NAMES_PER_SECOND)
    print("joined", flush=True)
    due = time.monotonic()
    for second in itertools.takewhile(lambda _: not ended(), itertools.count()):
        for name in names:
            transport.publish(topics.telemetry(name), telemetry(name, second).encode())
            due += 1 / count
            time.sleep(max(0.0, due - time.monotonic()))
    transport.close()


class Reader(threading.Thread):
    """Opens the page, then reads its event stream until ``closed`` is set.

    Attributes:
        received: bytes of the stream.
    """

    def __init__(self, url: str, *, slow: bool) -> None:
        super().__init__(daemon=True)
        self.received = 0
        self.closed = threading.Event()
        self._url, self._slow = url, slow

    def run(self) -> None:
        """Open streams, and another one when the page has closed the one before, as a browser does."""
        while not self.closed.is_set():
            frame = httpx.get(self._url).text.partition("events?frame=")[2].partition('"')[0]
            with self._connect() as stream:
                stream.sendall(f"GET /events?frame={frame} HTTP/1.1\r\nHost: {self._place()}\r\n\r\n".encode())
                self._read(stream)

    def _place(self) -> str:
        return urlsplit(self._url).netloc

    def _connect(self) -> socket.socket:
        host, _, port = self._place().partition(":")
        stream = socket.socket()
        if self._slow:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.settimeout(20)
        stream.connect((host, int(port)))
        return stream

    def _read(self, stream: socket.socket) -> None:
        while not self.closed.is_set() and (block := stream.recv(SLOW_BYTES if self._slow else 1 << 16)):
            self.received += len(block)
            if self._slow:
                time.sleep(SLOW_SECONDS)


def read_pages(url: str, count: int) -> None:
    """Open and close pages."""
    readers: list[Reader] = []
    for _ in sys.stdin:
        for reader in readers:
            reader.closed.set()
        for reader in readers:
            reader.join()
        print(json.dumps([reader.received for reader in readers]), flush=True)
        readers = [] if readers else [Reader(url, slow=number == count - 1) for number in range(count)]
        for reader in readers:
            reader.start()


if __name__ == "__main__":
    if sys.argv[1] == "boards":
        send_telemetry(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        read_pages(sys.argv[2], int(sys.argv[3]))
