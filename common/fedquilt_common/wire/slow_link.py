"""A slow, lossy link between an agent and its broker, to test one at a desk.

Each direction carries one message at a time, at ``rate`` bytes a second, topic and properties included. Each message
arrives ``latency`` later. A message larger than ``mtu`` goes in several packets. A chunk that loses a packet is lost,
and the protocol repairs it. Any other message is sent until all its packets arrive, as a broker's acknowledgements
ensure on a real link, and each try takes time. On a link with a ``window`` the packets of all messages are acknowledged
and repeated, so nothing is lost. A link with ``open`` times carries messages in these only.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.link import Link
from fedquilt_common.wire.transport import Deliver, Incoming, MakeTransport, MqttMessage, Will
from fedquilt_common.wire.window import QUEUED_BYTES
from fedquilt_common.wire.windowed_transfer import draw_transfer, draw_tries

FRAMING: Final = 8
"""Bytes of a message besides topic, properties and payload."""
_PAUSE: Final = 0.005


@dataclass(frozen=True)
class _Passage:
    """A message on a link.

    Attributes:
        size: its bytes.
        seconds: for which it occupies the link, at the desk.
        delay: seconds from then until it arrives, at the desk.
        arrives: False for a chunk that is lost.
    """

    size: int
    seconds: float = 0.0
    delay: float = 0.0
    arrives: bool = True


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

    def carry(self, transfer: _Passage, then: Callable[[], None]) -> None:
        """Call ``then`` once the message has been carried; 0 bytes take no time, even on a closed link."""
        with self._lock:
            self._bytes += transfer.size
            start = max(self._free_at, time.monotonic())
            self._free_at = self._end_of(start, transfer.seconds) if transfer.size else start
            self._under_way += 1
            self._waiting.put((self._free_at + transfer.delay, transfer.size, then))

    def _end_of(self, start: float, seconds: float) -> float:
        """Return when a transfer that can begin at ``start`` ends, both by the monotonic clock.

        The open times of all boards count from the same instant of Unix time, so that a drone serves one after another.
        """
        since = time.time() - time.monotonic()
        return self.link.end_of(start + since, seconds) - since

    def wait_for_room(self, should_stop: Callable[[], bool]) -> bool:
        """Wait until no more is queued than a transport may hold, so that memory does not grow with what is sent.

        Returns False if ``should_stop`` ended the wait.
        """
        while self._bytes > QUEUED_BYTES and self.error is None and not self._ended:
            if should_stop():
                return False
            time.sleep(_PAUSE)
        return True

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
        should_stop: whether nobody waits for the link any more, because the process stops.
    """

    def __init__(
        self,
        link: Link,
        make: MakeTransport,
        deliver: Deliver,
        will: Will,
        seed: int = 0,
        find_link: Callable[[MqttMessage], Link | None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._link = link
        self._deliver = deliver
        self._find_link = find_link
        self._should_stop = should_stop
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
            True once the message is queued; False after ``close``, or if the process stops while too much is queued.

        Raises:
            FedquiltError: the transport raised it for an earlier message.
        """
        if not self._open or not self._up.wait_for_room(self._should_stop):
            return False
        self._raise_error()
        transfer = self._draw_transfer(topic, payload, header)
        self._up.carry(transfer, (lambda: self._send(topic, payload, header, retain)) if transfer.arrives else _drop)
        return True

    def _send(self, topic: str, payload: bytes, header: bytes, retain: bool) -> None:
        if self._open:
            self._inner.publish(topic, payload, header=header, retain=retain)

    def _incoming(self, incoming: Incoming) -> None:
        if not isinstance(incoming, MqttMessage):
            self._down.carry(_Passage(0), lambda: self._deliver(incoming))
            return
        self._change_link(self._find_link(incoming))
        transfer = self._draw_transfer(incoming.topic, incoming.payload, incoming.header)
        self._down.carry(transfer, (lambda: self._deliver(incoming)) if transfer.arrives else incoming.ack)

    def _change_link(self, link: Link | None) -> None:
        if link is not None:
            self._link = self._up.link = self._down.link = link

    def _draw_transfer(self, topic: str, payload: bytes, header: bytes) -> _Passage:
        """Draw how often a message, or its packets, are sent until they arrive."""
        link, size = self._link, len(topic) + len(payload) + len(header) + FRAMING
        packets, once, delay = link.packets(size), link.seconds(size), link.latency / link.speedup
        if link.window is not None:
            sent, timeouts = draw_transfer(packets, link.loss, link.window, self._random)
            return _Passage(size, once * sent / packets + timeouts * link.timeout / link.speedup, delay)
        if header:
            return _Passage(size, once, delay, all(self._random.random() >= link.loss for _ in range(packets)))
        tries = max(1, round(sum(draw_tries(link.loss, self._random) for _ in range(packets)) / packets))
        return _Passage(size, once * tries, delay * tries)

    def _raise_error(self) -> None:
        if self._up.error is not None:
            raise self._up.error

    def drain(self, timeout: float) -> bool:
        self._raise_error()
        end = time.monotonic() + timeout
        while not self._up.idle and time.monotonic() < end and not self._should_stop():
            time.sleep(_PAUSE)
        return self._up.idle and self._inner.drain(max(0.0, end - time.monotonic()))

    def subscribe(self, filters: Iterable[str]) -> None:
        names = list(filters)
        if names:
            self._up.carry(self._whole(names), lambda: self._inner.subscribe(names))

    def unsubscribe(self, filters: Iterable[str]) -> None:
        names = list(filters)
        if names:
            self._up.carry(self._whole(names), lambda: self._inner.unsubscribe(names))

    def _whole(self, names: Sequence[str]) -> _Passage:
        """Return the transfer of a request about topic filters, which no link loses."""
        size = sum(map(len, names)) + FRAMING
        return _Passage(size, self._link.seconds(size), self._link.latency / self._link.speedup)

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
