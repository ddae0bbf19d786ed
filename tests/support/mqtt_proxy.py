"""A proxy between MQTT clients and their broker that cuts, stalls, delays, duplicates and reorders.

It reads each client's identifier from its CONNECT packet, so one port serves all of them and a fault hits one. It
shortens the delay of wills, so that a cut of three seconds does what a minute does elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

HOST: Final = "127.0.0.1"
CONNECT: Final = 0x10
PUBLISH: Final = 3
QOS_1: Final = 0x02
DUPLICATE_FLAG: Final = 0x08
WILL_FLAG: Final = 0x04
WILL_DELAY: Final = 0x18
HOLD_SECONDS: Final = 0.05
"""A held packet goes on after this time, if no other overtakes it."""

Direction = Literal["up", "down"]
"""To the broker, or to the client."""
Result = TypeVar("Result")
Whose = Callable[[str], bool]
"""Whether a fault hits the client with this identifier."""


@dataclass(frozen=True)
class Weather:
    """What happens to every connection.

    Attributes:
        delay: most seconds by which a packet is delayed.
        duplicates: part of the PUBLISH packets that arrive twice, the second time with the DUP flag.
        swaps: part of the PUBLISH packets that another one of another topic overtakes.
    """

    delay: float = 0.0
    duplicates: float = 0.0
    swaps: float = 0.0


CALM: Final = Weather()


@dataclass(eq=False)
class Connection:
    """A client's connection, with the one to the broker behind it."""

    name: str
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    open: asyncio.Event = field(default_factory=asyncio.Event)
    left: dict[Direction, float] = field(default_factory=lambda: {"up": math.inf, "down": math.inf})
    """Bytes that still pass; the connection is cut after the last one."""
    ended: set[Direction] = field(default_factory=set)
    """Directions in which nothing passes any more."""

    async def send(self, direction: Direction, data: bytes) -> None:
        """Pass data on.

        Raises:
            ConnectionError: the receiver is gone, or the connection was to be cut here.
        """
        if direction in self.ended or not data:
            return
        path, left = self._path(direction), self.left[direction]
        path.write(data if len(data) <= left else data[: int(left)])
        await path.drain()
        self.left[direction] -= len(data)
        if self.left[direction] < 0:
            await asyncio.sleep(HOLD_SECONDS)  # the last bytes leave
            raise ConnectionAbortedError

    def end(self, direction: Direction) -> None:
        """Let nothing more pass in one direction; its receiver reads an end."""
        self.ended.add(direction)
        path = self._path(direction)
        if not path.is_closing():
            path.write_eof()

    def cut(self) -> None:
        """Reset both sides."""
        self.open.set()
        for side in (self.client, self.broker):
            side.transport.abort()

    def lose(self) -> None:
        """Reset the broker's side only, and let nothing pass."""
        self.open.clear()
        self.broker.transport.abort()

    def _path(self, direction: Direction) -> asyncio.StreamWriter:
        return self.broker if direction == "up" else self.client


class MqttProxy:
    """The proxy; listens on ``port`` between ``start`` and ``close``. Its methods may be called from any thread.

    Args:
        broker_port: where the broker listens on this machine.
        weather: what happens to every connection.
        will_delay: seconds that replace the delay of wills; None leaves them.
        seed: of the weather.
    """

    def __init__(self, broker_port: int, weather: Weather = CALM, will_delay: int | None = None, seed: int = 0) -> None:
        self.port = 0
        self._broker_port, self._weather, self._will_delay = broker_port, weather, will_delay
        self._draw = random.Random(seed)
        self._connections: set[Connection] = set()
        self._rules: list[tuple[Whose, str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    # -- called from any thread ---------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)

    def close(self) -> None:
        """Cut everything and stop."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    @property
    def names(self) -> list[str]:
        """Identifiers of the connected clients, sorted."""
        return self._call(lambda: sorted(each.name for each in self._connections))

    def cut(self, whose: Whose) -> int:
        """Reset the connections of the clients for whose identifiers ``whose`` is true; returns how many."""
        return self._each(whose, Connection.cut)

    @contextlib.contextmanager
    def refusing(self, whose: Whose) -> Iterator[int]:
        """Cut connections, and reset new ones during the block."""
        with self._rule(whose, "refuse"):
            yield self.cut(whose)

    @contextlib.contextmanager
    def stalled(self, whose: Whose) -> Iterator[int]:
        """Let nothing pass during the block; everything arrives after it."""
        yield self._each(whose, lambda each: each.open.clear())
        self._each(whose, lambda each: each.open.set())

    @contextlib.contextmanager
    def swallowing(self, whose: Whose) -> Iterator[int]:
        """Let nothing pass during the block, to the client without a sign; to the broker the connection is lost."""
        with self._rule(whose, "swallow"):
            yield self._each(whose, Connection.lose)
        self.cut(whose)

    def half_close(self, whose: Whose, direction: Direction) -> int:
        """End one direction of connections as if its sender had finished."""
        return self._each(whose, lambda each: each.end(direction))

    def cut_after(self, whose: Whose, direction: Direction, count: int) -> int:
        """Cut connections once ``count`` more bytes have passed in one direction."""
        return self._each(whose, lambda each: each.left.update({direction: count}))

    # -- called in the loop's thread ----------------------------------------------------------

    def _of(self, whose: Whose) -> list[Connection]:
        return [each for each in self._connections if whose(each.name)]

    def _each(self, whose: Whose, act: Callable[[Connection], object]) -> int:
        return self._call(lambda: len([act(each) for each in self._of(whose)]))

    def _call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the loop's thread, and wait for what it returns."""

        async def call() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    @contextlib.contextmanager
    def _rule(self, whose: Whose, what: Literal["refuse", "swallow"]) -> Iterator[None]:
        rule: tuple[Whose, str] = (whose, what)
        self._rules.append(rule)
        try:
            yield
        finally:
            self._rules.remove(rule)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        self._server.close()
        for each in list(self._connections):
            each.cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            first = await read_packet(reader)
            if first[0] == CONNECT:  # a client whose connection was cut asks whether the port speaks TLS
                await self._greet(first, reader, writer)
        writer.transport.abort()

    async def _greet(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = client_identifier(first)
        while "swallow" in self._rules_for(name):
            await asyncio.sleep(HOLD_SECONDS)  # the client waits for an answer and gets none
        if "refuse" not in self._rules_for(name):
            await self._connect(name, first, reader, writer)

    def _rules_for(self, name: str) -> list[str]:
        return [what for whose, what in self._rules if whose(name)]

    async def _connect(
        self, name: str, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        down, up = await asyncio.open_connection(HOST, self._broker_port)
        connection = Connection(name, writer, up)
        connection.open.set()
        self._connections.add(connection)
        try:
            up.write(first if self._will_delay is None else with_will_delay(first, self._will_delay))
            await asyncio.gather(self._pump(connection, "up", reader), self._pump(connection, "down", down))
        finally:
            self._connections.discard(connection)
            connection.cut()

    async def _pump(self, connection: Connection, direction: Direction, reader: asyncio.StreamReader) -> None:
        """Pass packets on until the sender ends."""
        packets: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        feeder = asyncio.create_task(_feed(reader, packets))
        held = b""
        try:
            while (packet := await _next(packets, HOLD_SECONDS if held else None)) is not None:
                await connection.open.wait()
                await asyncio.sleep(self._draw.uniform(0, self._weather.delay))
                passing, held = self._order(held, packet)
                for each in passing:
                    await connection.send(direction, each)
            await connection.open.wait()
            await connection.send(direction, held)
            connection.end(direction)
        except OSError:
            connection.cut()
        finally:
            feeder.cancel()

    def _order(self, held: bytes, packet: bytes) -> tuple[list[bytes], bytes]:
        """Return the packets that pass now, and the one that waits until another one overtakes it."""
        if not held and topic_of(packet) and self._draw.random() < self._weather.swaps:
            return [], packet
        both = [packet, held] if topic_of(packet) not in (b"", topic_of(held)) else [held, packet]
        return [each for one in both if one for each in self._with_duplicate(one)], b""

    def _with_duplicate(self, packet: bytes) -> list[bytes]:
        if topic_of(packet) and self._draw.random() < self._weather.duplicates:
            return [packet, bytes([packet[0] | DUPLICATE_FLAG]) + packet[1:]]
        return [packet]


async def read_packet(reader: asyncio.StreamReader) -> bytes:
    """Read one MQTT packet.

    Raises:
        IncompleteReadError: the sender has ended.
    """
    head = bytearray(await reader.readexactly(2))
    while head[-1] & 0x80:
        head += await reader.readexactly(1)
    size, _ = read_number(bytes(head), 1)
    return bytes(head) + await reader.readexactly(size)


def read_number(data: bytes, start: int) -> tuple[int, int]:
    """Read a variable byte integer; returns it and the place after it."""
    value = shift = 0
    while True:
        value |= (data[start] & 0x7F) << shift
        start, shift = start + 1, shift + 7
        if not data[start - 1] & 0x80:
            return value, start


def _read_text(data: bytes, start: int) -> tuple[bytes, int]:
    end = start + 2 + int.from_bytes(data[start : start + 2], "big")
    return data[start + 2 : end], end


def topic_of(packet: bytes) -> bytes:
    """Return the topic of a PUBLISH packet of QoS 1; nothing for other packets."""
    if not packet or packet[0] >> 4 != PUBLISH or not packet[0] & QOS_1:
        return b""
    return _read_text(packet, read_number(packet, 1)[1])[0]


def client_identifier(connect: bytes) -> str:
    """Return the client identifier of a CONNECT packet of MQTT 5."""
    return _read_text(connect, _identifier_at(connect))[0].decode()


def _identifier_at(connect: bytes) -> int:
    """The payload's place: after the protocol's name, level, flags, keepalive and properties."""
    _, start = _read_text(connect, read_number(connect, 1)[1])
    size, start = read_number(connect, start + 4)
    return start + size


def with_will_delay(connect: bytes, seconds: int) -> bytes:
    """Return a CONNECT packet with another Will Delay Interval; it stays as it is if it has none."""
    level = _read_text(connect, read_number(connect, 1)[1])[1]
    _, start = _read_text(connect, _identifier_at(connect))
    if not connect[level + 1] & WILL_FLAG:
        return connect
    _, start = read_number(connect, start)
    if connect[start] != WILL_DELAY:
        return connect
    return connect[: start + 1] + struct.pack(">I", seconds) + connect[start + 5 :]


async def _feed(reader: asyncio.StreamReader, packets: asyncio.Queue[bytes | None]) -> None:
    """Put packets into a queue, and None at the end."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            await packets.put(await read_packet(reader))
    await packets.put(None)


async def _next(packets: asyncio.Queue[bytes | None], seconds: float | None) -> bytes | None:
    """Return the next packet; nothing if none comes in time, None at the end."""
    try:
        return await asyncio.wait_for(packets.get(), seconds)
    except asyncio.TimeoutError:
        return b""
