"""A narrow and lossy link, put between an agent and its broker so that it can be tried at a desk.

Each direction is a line of its own that carries one message at a time, ``rate`` bytes of link a second, topic and
properties included, and everything ``latency`` later. A message larger than ``mtu`` goes in as many packets. A chunk
that loses a packet is lost, and it is the protocol that repairs it; any other message is sent until it is through, as a
broker's own acknowledgement sees to it, and pays for each try.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.link import Link
from fedquilt_common.wire.transport import Deliver, Incoming, MqttMessage, Transport, Will
from fedquilt_common.wire.window import QUEUED_BYTES

FRAMING: Final = 8
"""Bytes of a message beside topic, properties and payload."""
_MOST_TRIES: Final = 1000
_PAUSE: Final = 0.005


class _Line(threading.Thread):
    """One direction: does things in order, each when the line has carried it."""

    def __init__(self, link: Link, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.link = link
        self.error: FedquiltError | None = None
        self._waiting: queue.SimpleQueue[tuple[float, int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._bytes = 0
        self._ended = False
        self._free_at = 0.0
        self._under_way = 0
        self._lock = threading.Lock()

    def carry(self, size: int, tries: int, then: Callable[[], None]) -> None:
        """Do ``then`` once ``size`` bytes have been carried ``tries`` times; 0 bytes take no time."""
        with self._lock:
            self._bytes += size
            self._free_at = max(self._free_at, time.monotonic()) + self.link.seconds(size) * tries
            self._under_way += 1
            delay = self.link.latency / self.link.speedup * tries if size else 0.0
            self._waiting.put((self._free_at + delay, size, then))

    def wait_for_room(self) -> None:
        """Until less waits than a transport may hold: memory does not grow with what is sent."""
        while self._bytes > QUEUED_BYTES and self.error is None and not self._ended:
            time.sleep(_PAUSE)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._under_way == 0

    def run(self) -> None:
        while (item := self._waiting.get()) is not None:
            due, size, then = item
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                then()
            except FedquiltError as error:  # such as a message too large: its sender must hear of it
                self.error = error
            with self._lock:
                self._under_way -= 1
                self._bytes -= size

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._waiting.put(None)


class SlowLinkTransport:
    """A ``Transport`` behind a ``Link``; ``make`` makes the transport from a callback and a last will.

    ``learn`` is shown each message that comes in, and may know of another link from then on.
    """

    def __init__(
        self,
        link: Link,
        make: Callable[[Deliver, Will], Transport],
        deliver: Deliver,
        will: Will,
        seed: int = 0,
        learn: Callable[[MqttMessage], Link | None] = lambda _: None,
    ) -> None:
        self._link = link
        self._deliver = deliver
        self._learn = learn
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._up, self._down = _Line(link, "link-up"), _Line(link, "link-down")
        self._inner = make(self._incoming, will)
        self._open = True

    def connect(self) -> None:
        self._up.start()
        self._down.start()
        self._inner.connect()

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        """True as soon as the message waits for its turn: what is lost then is said again, or asked for.

        Raises what the transport has raised for a message before.
        """
        if not self._open:
            return False
        self._up.wait_for_room()
        self._check()
        size, tries = self._fate(topic, payload, header)
        send = _nothing if tries == 0 else lambda: self._send(topic, payload, header, retain)
        self._up.carry(size, max(1, tries), send)
        return True

    def _send(self, topic: str, payload: bytes, header: bytes, retain: bool) -> None:
        if self._open:
            self._inner.publish(topic, payload, header=header, retain=retain)

    def _incoming(self, incoming: Incoming) -> None:
        if not isinstance(incoming, MqttMessage):
            self._down.carry(0, 1, lambda: self._deliver(incoming))
            return
        self._take_up(self._learn(incoming))
        size, tries = self._fate(incoming.topic, incoming.payload, incoming.header)
        self._down.carry(size, max(1, tries), incoming.ack if tries == 0 else lambda: self._deliver(incoming))

    def _take_up(self, link: Link | None) -> None:
        if link is not None:
            self._link = self._up.link = self._down.link = link

    def _fate(self, topic: str, payload: bytes, header: bytes) -> tuple[int, int]:
        """(bytes on the link, how often they are sent until they are through; 0 for a chunk that is lost)."""
        size = len(topic) + len(payload) + len(header) + FRAMING
        packets = self._link.packets(size)
        if header:
            return size, int(all(self._random.random() >= self._link.loss for _ in range(packets)))
        tries = sum(self._tries() for _ in range(packets))
        return size, max(1, round(tries / packets))

    def _tries(self) -> int:
        """Of one packet until it is through."""
        tries = 1
        while tries < _MOST_TRIES and self._random.random() < self._link.loss:
            tries += 1
        return tries

    def _check(self) -> None:
        if self._up.error is not None:
            raise self._up.error

    def drain(self, timeout: float) -> bool:
        self._check()
        end = time.monotonic() + timeout
        while not self._up.idle and time.monotonic() < end:
            time.sleep(_PAUSE)
        return self._up.idle and self._inner.drain(max(0.0, end - time.monotonic()))

    def subscribe(self, filters: Iterable[str]) -> None:
        listed = list(filters)
        if listed:
            self._up.carry(sum(map(len, listed)) + FRAMING, 1, lambda: self._inner.subscribe(listed))

    def unsubscribe(self, filters: Iterable[str]) -> None:
        listed = list(filters)
        if listed:
            self._up.carry(sum(map(len, listed)) + FRAMING, 1, lambda: self._inner.unsubscribe(listed))

    def close(self, last: tuple[str, bytes] | None = None) -> None:
        """What still waits is given up; the farewell goes at once."""
        self._open = False
        self._inner.close(last)
        self._up.end()
        self._down.end()

    @property
    def max_payload(self) -> int:
        """A chunk is to fit into one packet."""
        own = self._link.payload
        return self._inner.max_payload if own is None else min(self._inner.max_payload, own)

    @property
    def bytes_sent(self) -> int:
        return self._inner.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._inner.bytes_received


def _nothing() -> None:
    """A chunk that is lost."""
