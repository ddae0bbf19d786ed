"""A slow, lossy link between an agent and its broker, to test one at a desk.

Each direction carries one message at a time, at ``rate`` bytes a second, topic and properties included. Each message
arrives ``latency`` later. A message larger than ``mtu`` goes in several packets. A chunk that loses a packet is lost,
and the protocol repairs it. Any other message is sent until all its packets arrive, as a broker's acknowledgements
ensure on a real link, and each try takes time.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.wire.transport import Deliver, Incoming, MakeTransport, MqttMessage, Will
from fedquilt_common.wire.window import QUEUED_BYTES

BOUNDS: Final = {
    "rate": (0.1, 1e12), "latency": (0.0, 86_400.0), "loss": (0.0, 0.9), "mtu": (8.0, 1e9), "speedup": (1e-3, 1e6),
}  # fmt: skip
"""Least and most that each number of a link may be."""
CHUNK_OVERHEAD: Final = 128
"""Bytes of a packet reserved for a chunk's topic and header, which rarely take more."""
SMALLEST_PAYLOAD: Final = 16
"""Bytes of a chunk, at least, on a link with very small packets."""
FRAMING: Final = 8
"""Bytes of a message besides topic, properties and payload."""
_MOST_TRIES: Final = 1000
_PAUSE: Final = 0.005
_FORM: Final = "rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100"


@dataclass(frozen=True)
class Link:
    """The properties of a link.

    Attributes:
        rate: bytes a second in each direction; None: unlimited.
        latency: seconds from sending to arrival.
        loss: fraction of the packets that do not arrive, 0 to 0.9.
        mtu: bytes of the largest packet; None: unlimited.
        speedup: seconds on the link for each second at the desk.
    """

    rate: float | None = None
    latency: float = 0.0
    loss: float = 0.0
    mtu: int | None = None
    speedup: float = 1.0

    def packets(self, size: int) -> int:
        """Number of packets of a message of ``size`` bytes."""
        return max(1, -(-size // self.mtu)) if self.mtu else 1

    def seconds(self, size: int) -> float:
        """Seconds at the desk for which a message of ``size`` bytes occupies the link."""
        return size / self.rate / self.speedup if self.rate else 0.0

    @property
    def payload(self) -> int | None:
        """Bytes of a chunk that fits a packet; None: unlimited."""
        return None if self.mtu is None else max(SMALLEST_PAYLOAD, self.mtu - CHUNK_OVERHEAD)

    def encode(self) -> str:
        """Encode as text for ``parse_link``."""
        fields = {
            "rate": self.rate,
            "latency": self.latency,
            "loss": self.loss,
            "mtu": self.mtu,
            "speedup": self.speedup,
        }
        return ",".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)


def parse_link(text: str) -> Link:
    """Parse a link such as ``rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100``.

    A number that ``text`` leaves out has the default of ``Link``.

    Raises:
        ExperimentError: ``text`` has another form, or a number is out of bounds.
    """
    numbers: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in BOUNDS or name in numbers:
            raise ExperimentError(f"link {text!r}: write it as {_FORM}")
        with contextlib.suppress(ValueError):
            numbers[name] = float(value)
        least, most = BOUNDS[name]
        if not least <= numbers.get(name, float("nan")) <= most:
            raise ExperimentError(f"link {text!r}: {name} must be a number from {least:g} to {most:g}")
    mtu = numbers.pop("mtu", None)
    if mtu is not None and mtu != int(mtu):
        raise ExperimentError(f"link {text!r}: mtu must be a whole number of bytes")
    return Link(**numbers, mtu=None if mtu is None else int(mtu))


class _Direction(threading.Thread):
    """One direction of a link: runs actions in order, each after the link has carried its bytes."""

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
        """Call ``then`` once ``size`` bytes have been carried ``tries`` times; 0 bytes take no time."""
        with self._lock:
            self._bytes += size
            self._free_at = max(self._free_at, time.monotonic()) + self.link.seconds(size) * tries
            self._under_way += 1
            delay = self.link.latency / self.link.speedup * tries if size else 0.0
            self._waiting.put((self._free_at + delay, size, then))

    def wait_for_room(self) -> None:
        """Wait until no more is queued than a transport may hold, so that memory does not grow with what is sent."""
        while self._bytes > QUEUED_BYTES and self.error is None and not self._ended:
            time.sleep(_PAUSE)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._under_way == 0

    def run(self) -> None:
        """Run the actions until ``end`` is called."""
        while (item := self._waiting.get()) is not None:
            due, size, then = item
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                then()
            except FedquiltError as error:  # such as a message that is too large: the next publish raises it
                self.error = error
            with self._lock:
                self._under_way -= 1
                self._bytes -= size

    def end(self) -> None:
        """Stop the thread after what is queued."""
        self._ended = True
        self._waiting.put(None)


class SlowLinkTransport:
    """A ``Transport`` behind a slow link.

    Args:
        link: the link's properties at the start.
        make: makes the transport to the broker.
        deliver: receives everything that arrives.
        will: the last will.
        seed: of the packet losses.
        find_link: called with each message that arrives; returns the link to imitate from then on, or None to keep
            the present one.
    """

    def __init__(
        self,
        link: Link,
        make: MakeTransport,
        deliver: Deliver,
        will: Will,
        seed: int = 0,
        find_link: Callable[[MqttMessage], Link | None] = lambda _: None,
    ) -> None:
        self._link = link
        self._deliver = deliver
        self._find_link = find_link
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._up, self._down = _Direction(link, "link-up"), _Direction(link, "link-down")
        self._inner = make(self._incoming, will)
        self._open = True

    def connect(self) -> None:
        self._up.start()
        self._down.start()
        self._inner.connect()

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        """Queue a message; the protocol repairs what the link loses.

        Returns:
            True once the message is queued; False after ``close``.

        Raises:
            FedquiltError: the transport raised it for an earlier message.
        """
        if not self._open:
            return False
        self._up.wait_for_room()
        self._raise_error()
        size, tries = self._simulate_loss(topic, payload, header)
        send = _drop if tries == 0 else lambda: self._send(topic, payload, header, retain)
        self._up.carry(size, max(1, tries), send)
        return True

    def _send(self, topic: str, payload: bytes, header: bytes, retain: bool) -> None:
        if self._open:
            self._inner.publish(topic, payload, header=header, retain=retain)

    def _incoming(self, incoming: Incoming) -> None:
        if not isinstance(incoming, MqttMessage):
            self._down.carry(0, 1, lambda: self._deliver(incoming))
            return
        self._change_link(self._find_link(incoming))
        size, tries = self._simulate_loss(incoming.topic, incoming.payload, incoming.header)
        self._down.carry(size, max(1, tries), incoming.ack if tries == 0 else lambda: self._deliver(incoming))

    def _change_link(self, link: Link | None) -> None:
        if link is not None:
            self._link = self._up.link = self._down.link = link

    def _simulate_loss(self, topic: str, payload: bytes, header: bytes) -> tuple[int, int]:
        """Bytes on the link, and how often they are sent until they arrive; 0 for a chunk that is lost."""
        size = len(topic) + len(payload) + len(header) + FRAMING
        packets = self._link.packets(size)
        if header:
            return size, int(all(self._random.random() >= self._link.loss for _ in range(packets)))
        tries = sum(self._count_tries() for _ in range(packets))
        return size, max(1, round(tries / packets))

    def _count_tries(self) -> int:
        """How often one packet is sent until it arrives."""
        tries = 1
        while tries < _MOST_TRIES and self._random.random() < self._link.loss:
            tries += 1
        return tries

    def _raise_error(self) -> None:
        if self._up.error is not None:
            raise self._up.error

    def drain(self, timeout: float) -> bool:
        self._raise_error()
        end = time.monotonic() + timeout
        while not self._up.idle and time.monotonic() < end:
            time.sleep(_PAUSE)
        return self._up.idle and self._inner.drain(max(0.0, end - time.monotonic()))

    def subscribe(self, filters: Iterable[str]) -> None:
        names = list(filters)
        if names:
            self._up.carry(sum(map(len, names)) + FRAMING, 1, lambda: self._inner.subscribe(names))

    def unsubscribe(self, filters: Iterable[str]) -> None:
        names = list(filters)
        if names:
            self._up.carry(sum(map(len, names)) + FRAMING, 1, lambda: self._inner.unsubscribe(names))

    def ignore(self, ignores: Callable[[str], bool]) -> None:
        self._inner.ignore(ignores)

    def close(self, last: tuple[str, bytes] | None = None, *, end_session: bool = False) -> None:
        """Discard what is queued, publish ``last`` at once and disconnect."""
        self._open = False
        self._inner.close(last, end_session=end_session)
        self._up.end()
        self._down.end()

    @property
    def max_payload(self) -> int:
        """Bytes of payload that fit one packet of the link and of the broker."""
        limit = self._link.payload
        return self._inner.max_payload if limit is None else min(self._inner.max_payload, limit)

    @property
    def bytes_sent(self) -> int:
        return self._inner.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._inner.bytes_received


def _drop() -> None:
    """Do nothing: the chunk is lost."""
