"""Packets are read from a socket: no byte is lost, and ignored publications reach nobody."""

from __future__ import annotations

import itertools
import ssl
import struct
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.wire.mqtt_limits import LARGEST_PACKET
from fedquilt_common.wire.publish_packets import parse_publish
from fedquilt_common.wire.read_ahead import PacketLengthError, ReadAhead


def packet(topic: str, payload: bytes, qos: int, mid: int, *, retained: bool = False) -> bytes:
    name = topic.encode()
    body = struct.pack(">H", len(name)) + name + (struct.pack(">H", mid) if qos else b"") + b"\x00" + payload
    return bytes([0x30 | qos << 1 | retained]) + encode(len(body)) + body


def encode(left: int) -> bytes:
    """Encode a length as MQTT does."""
    length = b""
    while left or not length:
        length, left = length + bytes([left & 127 | (128 if left > 127 else 0)]), left >> 7
    return length


def read_one(source: ReadAhead) -> bytes:
    first, content = source.read_packet()
    return bytes([first]) + encode(len(content)) + content


class Line:
    """A socket that yields its pieces one after the other."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = [piece for piece in pieces if piece]

    def recv(self, size: int) -> bytes:
        if not self.pieces:
            raise BlockingIOError
        piece, rest = self.pieces[0][:size], self.pieces[0][size:]
        self.pieces[:1] = [rest] if rest else []
        return piece

    def recv_into(self, buffer: memoryview) -> int:
        piece = self.recv(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class Ended(Line):
    """A socket whose other end is closed after the last piece."""

    def recv(self, size: int) -> bytes:
        return super().recv(size) if self.pieces else b""


def read_all(source: ReadAhead) -> tuple[bytes, list[bytes]]:
    """Read packets as the client does; returns them as bytes, and which were dropped."""
    read, dropped, line = b"", [], source._connection
    while True:
        try:
            dropped += source.drop(lambda topic: topic == "ignored")
            read += read_one(source)
        except BlockingIOError:
            assert source.pending() == 0  # else the client would not wait for the socket
            if not line.pieces:  # nothing would wake it any more
                return read, dropped


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["ignored", "kept"]),
        st.sampled_from([0, 5, 130, 70_000]),
        st.sampled_from([0, 1]),
        st.booleans(),
    ),
    max_size=12,
)


@given(MESSAGES, st.lists(st.integers(0, 400_000), max_size=6), st.lists(st.integers(0, 40), max_size=6))
def test_exactly_what_is_not_ignored_is_read(
    messages: list[tuple[str, int, int, bool]], cuts: list[int], near_cuts: list[int]
) -> None:
    """However the network splits the stream."""
    packets = [
        packet(topic, b"x" * size, qos, mid + 1, retained=retained)
        for mid, (topic, size, qos, retained) in enumerate(messages)
    ]
    stream = b"".join(packets)
    starts = [0, *itertools.accumulate(len(each) for each in packets)]
    places = sorted({*cuts, *(starts[at % len(starts)] + at for at in near_cuts)})
    pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]
    counted: list[int] = []
    source = ReadAhead(Line(pieces), counted.append)
    read, dropped = read_all(source)
    ignored = [topic == "ignored" and not retained for topic, _, _, retained in messages]
    assert sum(counted) == len(stream)
    assert source.pending() == 0
    assert read == b"".join(each for each, drops in zip(packets, ignored, strict=True) if not drops)
    mids = [mid + 1 for mid, drops in enumerate(ignored) if drops and messages[mid][2]]
    assert dropped == [struct.pack(">H", mid) for mid in mids]


def test_an_ignored_packet_is_acknowledged_when_all_of_it_has_arrived() -> None:
    whole = packet("ignored", bytes(300_000), 1, 7)
    line = Line([whole[:20]])
    source = ReadAhead(line, lambda _: None)
    assert source.drop(lambda _: True) == []
    with pytest.raises(BlockingIOError):
        source.read_packet()
    line.pieces = [whole[20:], packet("kept", b"", 0, 0)]
    assert source.drop(lambda topic: topic == "ignored") == [b"\x00\x07"]
    assert read_one(source) == packet("kept", b"", 0, 0)


@pytest.mark.parametrize("pieces", [15, 16, 17, 32])
def test_a_packet_behind_a_long_ignored_one_is_read_without_another_arrival(pieces: int) -> None:
    ignored, kept = packet("ignored", bytes(pieces * 100), 1, 7), packet("kept", b"x", 0, 0)
    stream = ignored + kept
    size = -(-len(stream) // pieces)
    source = ReadAhead(Line([stream[at : at + size] for at in range(0, len(stream), size)]), lambda _: None)
    assert read_all(source) == (kept, [b"\x00\x07"])


@pytest.mark.parametrize("error", [ssl.SSLWantWriteError, ssl.SSLWantReadError, ConnectionResetError])
def test_an_error_of_the_socket_is_raised_where_it_is_handled(error: type[OSError]) -> None:
    class Broken:
        def recv(self, size: int) -> bytes:
            raise error

    source = ReadAhead(Broken(), lambda _: None)
    assert source.drop(lambda _: True) == []
    with pytest.raises(error):
        source.read_packet()


def test_the_end_of_the_connection_is_read_as_such() -> None:
    source = ReadAhead(Ended([packet("ignored", bytes(100), 1, 7)[:50]]), lambda _: None)
    assert source.drop(lambda _: True) == []
    with pytest.raises(ConnectionResetError):
        source.read_packet()


def test_a_flood_does_not_keep_the_client_from_writing() -> None:
    class Endless:
        def recv(self, size: int) -> bytes:
            return packet("ignored", bytes(100), 1, 7)

    source = ReadAhead(Endless(), lambda _: None)
    assert source.drop(lambda _: True)
    with pytest.raises(BlockingIOError):
        source.read_packet()


@pytest.mark.parametrize(
    ("length", "what"),
    [(b"\x80\x80\x80\x80\x01", "without a valid length"), (encode(LARGEST_PACKET + 1), "of 16777217 bytes")],
)
def test_no_memory_is_taken_for_a_length_that_nobody_may_send(length: bytes, what: str) -> None:
    source = ReadAhead(Line([b"\x30" + length + bytes(100)]), lambda _: None)
    tracemalloc.start()
    try:
        with pytest.raises(PacketLengthError, match=what):
            source.read_packet()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_largest_packet_is_read() -> None:
    source = ReadAhead(Line([b"\x30" + encode(LARGEST_PACKET), bytes(LARGEST_PACKET)]), lambda _: None)
    with pytest.raises(BlockingIOError):
        ReadAhead(Line([b"\x30" + encode(LARGEST_PACKET)]), lambda _: None).read_packet()
    assert len(source.read_packet()[1]) == LARGEST_PACKET


def test_a_connection_that_ends_within_a_packet_is_lost() -> None:
    source = ReadAhead(Ended([packet("kept", bytes(100), 1, 7)[:50]]), lambda _: None)
    with pytest.raises(ConnectionResetError):
        source.read_packet()


def test_whole_ignored_packets_are_dropped_and_named_for_the_acknowledgement() -> None:
    packets = [packet("ignored", b"x", 1, 7), packet("ignored", b"", 0, 0), packet("ignored", b"y", 1, 9)]
    source = ReadAhead(Line([b"".join([*packets, packet("kept", b"z", 1, 10)])]), lambda _: None)
    assert source.drop(lambda topic: topic == "ignored") == [b"\x00\x07", b"\x00\x09"]
    assert read_one(source) == packet("kept", b"z", 1, 10)


def test_a_retained_message_is_never_dropped() -> None:
    assert parse_publish(packet("ignored", b"x", 1, 1, retained=True), 0) is None
    assert parse_publish(packet("ignored", b"x", 1, 1), 0) is not None


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_parsed_without_an_error(data: bytes) -> None:
    try:
        head = parse_publish(data, 0)
    except IndexError:
        return
    assert head is None or head.end > 0


@pytest.mark.parametrize("data", [b"\x30\x00", b"\x32\x01\x00", b"\x30\xff\xff\xff\xff", b"\x32\x03\x00\x02a"])
def test_a_malformed_packet_is_left_to_paho(data: bytes) -> None:
    assert parse_publish(data, 0) is None


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_packets_or_refused(pieces: list[bytes]) -> None:
    source = ReadAhead(Line(pieces), lambda _: None)
    try:
        read, _ = read_all(source)
    except PacketLengthError:
        return
    assert len(read) <= len(b"".join(pieces))
