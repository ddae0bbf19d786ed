"""Many boards as bare MQTT 5 connections in one process, so that a broker's cost for each of them can be measured.

An MQTT library needs a thread or megabytes for each connection. These boards send what an agent sends: a connection
with a will, a retained presence, subscriptions, pings and telemetry. They acknowledge what they receive.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedquilt_common.wire.publish_packets import pack_length, parse_length

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, PINGRESP = 1, 2, 3, 4, 8, 9, 12, 13
"""Packet types of MQTT 5."""
AT_ONCE: Final = 100
"""Connections that are opened at a time: a broker's queue of new ones is short."""
KEEPALIVE: Final = 30
RECEIVE_MAXIMUM: Final = 100
SESSION_SECONDS: Final = 3600


def text(data: bytes) -> bytes:
    """Return bytes with their length before them."""
    return struct.pack(">H", len(data)) + data


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    """Return a packet of a type."""
    return bytes([kind << 4 | flags]) + pack_length(len(body)) + body


def connect(client: str, will_topic: str, will: bytes) -> bytes:
    """Return a CONNECT with a retained will, as agents send it."""
    properties = struct.pack(">BIBH", 0x11, SESSION_SECONDS, 0x21, RECEIVE_MAXIMUM)
    flags = 0b00101110  # retained will of QoS 1, clean start
    head = text(b"MQTT") + struct.pack(">BBH", 5, flags, KEEPALIVE) + bytes([len(properties)]) + properties
    return packet(CONNECT, head + text(client.encode()) + b"\0" + text(will_topic.encode()) + text(will))


def subscribe(filters: Sequence[str]) -> bytes:
    """Return a SUBSCRIBE with QoS 1 for each filter."""
    return packet(SUBSCRIBE, b"\0\1\0" + b"".join(text(one.encode()) + b"\1" for one in filters), 0b0010)


def publish(topic: str, payload: bytes, *, retain: bool = False) -> bytes:
    """Return a PUBLISH with QoS 1."""
    return packet(PUBLISH, text(topic.encode()) + b"\0\1\0" + payload, 0b0010 | retain)


def packets(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take all whole packets out of a buffer: the first byte and the body of each."""
    while (found := _head(buffer)) is not None:
        start, length = found
        if len(buffer) < start + length:
            return
        first, body = buffer[0], bytes(buffer[start : start + length])
        del buffer[: start + length]
        yield first, body


def _head(buffer: bytearray) -> tuple[int, int] | None:
    """Return where the body of the first packet begins, and its length; None if that is not there yet."""
    try:
        length, start = parse_length(buffer, 1)
    except IndexError:
        return None
    return None if length is None else (start, length)


@dataclass
class Board(asyncio.Protocol):
    """One connection.

    Args:
        greeting: the CONNECT to send.

    Attributes:
        answers: packets of each type that have arrived.
        received: bytes of the payloads of all messages, with their topics.
    """

    greeting: bytes
    answers: dict[int, int] = field(default_factory=dict)
    received: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    _transport: asyncio.Transport | None = None
    _wanted: tuple[int, int, asyncio.Future[None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP
        self._transport = transport
        self.send(self.greeting)

    def send(self, data: bytes) -> None:
        """Send packets."""
        assert self._transport is not None  # noqa: S101 - connected
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for first, body in packets(self._buffer):
            kind = first >> 4
            self.answers[kind] = self.answers.get(kind, 0) + 1
            if kind == PUBLISH:
                self._acknowledge(first, body)
        if self._wanted and self.answers.get(self._wanted[0], 0) >= self._wanted[1] and not self._wanted[2].done():
            self._wanted[2].set_result(None)

    def _acknowledge(self, first: int, body: bytes) -> None:
        self.received += len(body)
        if first & 0b0110:
            topic = struct.unpack(">H", body[:2])[0]
            self.send(packet(PUBACK, body[2 + topic : 4 + topic]))

    async def ask(self, data: bytes, kind: int, count: int = 1) -> None:
        """Send packets, and wait until ``count`` more packets of a type have arrived."""
        awaited = self.expect(kind, count)
        self.send(data)
        await awaited

    def expect(self, kind: int, count: int) -> asyncio.Future[None]:
        """Return what is done when ``count`` more packets of a type have arrived."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted = (kind, self.answers.get(kind, 0) + count, done)
        return done

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


async def open_board(port: int, greeting: bytes) -> Board:
    """Connect a board to a broker on this machine, and wait for its answer."""
    loop = asyncio.get_running_loop()
    _, board = await loop.create_connection(lambda: Board(greeting), "127.0.0.1", port)
    if not board.answers.get(CONNACK):
        await board.expect(CONNACK, 1)
    return board
