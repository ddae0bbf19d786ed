"""Reads packets of MQTT from a socket, and drops ignored publications before anything else looks at them.

paho reads a packet in four or more system calls, joins its pieces, and takes 60 microseconds for a small one. Here many
small packets arrive with one call, and a large one is read to where it stays. Under a flood, the time for a packet is
the time that every other message waits; dropping a small one takes 3 microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fedquilt_common.wire.mqtt_limits import LARGEST_PACKET
from fedquilt_common.wire.publish_packets import PublishBegin, parse_length, parse_publish

Ignores = Callable[[str], bool]
"""Whether messages on a topic are dropped."""
_BLOCK: Final = 64 * 1024
_ENDED: Final = "the broker closed the connection"
_READS: Final = 16
"""Reads of one ``drop``: between two calls, paho also writes and checks the keepalive."""


class PacketLengthError(Exception):
    """A packet's length is malformed, or above the largest packet."""


class ReadAhead:
    """Wraps a connected, non-blocking socket; everything that is not defined here is the socket's own.

    Args:
        connection: a plain or a TLS socket.
        count: called with the number of bytes of each read.
    """

    def __init__(self, connection: Any, count: Callable[[int], None]) -> None:
        self._connection = connection
        self._inner_pending: Callable[[], int] = getattr(connection, "pending", lambda: 0)  # of TLS
        self._count = count
        self._data = b""
        self._at = 0
        self._ignored: PublishBegin | None = None
        self._first = 0
        self._body: bytearray | None = None  # of the packet that is arriving
        self._filled = 0
        self._pause: OSError | None = None
        self._waits = False  # whether more must arrive before the next packet can be read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def pending(self) -> int:
        """Bytes that can be read although the operating system reports nothing."""
        return self._inner_pending() + (0 if self._waits else len(self._data) - self._at)

    def read_packet(self) -> tuple[int, bytearray]:
        """Read the next packet: its first byte, and what follows its length.

        Raises:
            PacketLengthError: nobody may send a packet of its length; no memory was taken for it.
            OSError: it has not arrived as a whole, only what ``drop`` drops has, or the connection is broken.
        """
        try:
            if self._pause is not None:
                raise self._pause
            body = self._body = self._begin_packet() if self._body is None else self._body
            self._fill(body)
        except OSError:
            self._waits = True
            raise
        self._waits, self._body = False, None
        return self._first, body

    def _begin_packet(self) -> bytearray:
        while (begin := self._parse_begin()) is None:
            if not self._extend():
                raise ConnectionResetError(_ENDED)
        self._first, length, start = begin
        arrived = memoryview(self._data)[start : start + length]
        body, self._filled = bytearray(length), len(arrived)
        body[: self._filled] = arrived
        self._at = start + self._filled
        return body

    def _parse_begin(self) -> tuple[int, int, int] | None:
        """Return the first byte of the packet that comes next, its length, and where its rest begins."""
        try:
            first = self._data[self._at]
            length, start = parse_length(self._data, self._at + 1)
        except IndexError:
            return None
        if length is None or length > LARGEST_PACKET:
            size = "without a valid length" if length is None else f"of {length} bytes"
            raise PacketLengthError(f"the broker sent a packet {size}: at most {LARGEST_PACKET} bytes are accepted")
        return first, length, start

    def _fill(self, body: bytearray) -> None:
        while self._filled < len(body):
            read = self._connection.recv_into(memoryview(body)[self._filled :])
            if not read:
                raise ConnectionResetError(_ENDED)
            self._count(read)
            self._filled += read

    def drop(self, ignores: Ignores) -> list[bytes]:
        """Drop ignored publications up to the next packet that is not; does nothing within a packet.

        ``read_packet`` raises until this packet's head has arrived. A packet that is dropped does not have to arrive at
        once.

        Returns:
            The packet identifiers to acknowledge.
        """
        dropped: list[bytes] = []
        self._pause = None
        if self._body is not None:
            return dropped
        try:
            for _ in range(_READS):
                if self._drop_from_data(ignores, dropped) or not self._extend():
                    return dropped
            if not self._drop_from_data(ignores, dropped):  # what the last read brought may be the end
                self._pause = BlockingIOError()
        except OSError as error:
            self._pause = error
        return dropped

    def _drop_from_data(self, ignores: Ignores, dropped: list[bytes]) -> bool:
        """Drop what has arrived of ignored packets; returns whether another packet comes next."""
        try:
            while self._finish_ignored(dropped):
                head = parse_publish(self._data, self._at)
                if head is None or not ignores(head.topic):
                    return True
                self._ignored = head
        except IndexError:
            pass
        return False

    def _finish_ignored(self, dropped: list[bytes]) -> bool:
        """Drop what has arrived of the ignored packet; returns whether nothing of it is missing."""
        head = self._ignored
        if head is None:
            return True
        self._at = min(head.end, len(self._data))
        if self._at < head.end:
            return False
        if head.mid:
            dropped.append(head.mid)
        self._ignored = None
        return True

    def _extend(self) -> bool:
        """Read more behind what is left; returns False at the end of the connection."""
        more = self._read(_BLOCK)
        if self._ignored is not None:
            self._ignored = replace(self._ignored, end=self._ignored.end - self._at)
        self._data, self._at = self._data[self._at :] + more, 0
        return bool(more)

    def _read(self, size: int) -> bytes:
        data: bytes = self._connection.recv(size)
        self._count(len(data))
        return data
