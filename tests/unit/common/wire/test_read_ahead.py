"""Reading ahead of paho: no byte is lost, and ignored publications never reach it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.wire.read_ahead import ReadAhead, parse_publish


def packet(topic: str, payload: bytes, qos: int, mid: int, *, retained: bool = False) -> bytes:
    name = topic.encode()
    body = struct.pack(">H", len(name)) + name + (struct.pack(">H", mid) if qos else b"") + b"\x00" + payload
    length, left = b"", len(body)
    while left or not length:
        length, left = length + bytes([left & 127 | (128 if left > 127 else 0)]), left >> 7
    return bytes([0x30 | qos << 1 | retained]) + length + body


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


def read_like_paho(source: ReadAhead) -> tuple[bytes, list[bytes]]:
    """Read byte by byte as far as a packet's length, then the packet; returns what was read and what was dropped."""
    read, dropped, need = b"", [], 0
    waits = 0
    while waits < 2:
        try:
            if not need:
                dropped += source.drop(lambda topic: topic == "ignored")
                head = source.recv(1)
                while len(head) < 2 or head[-1] > 127:
                    head += _wait(source)
                need = sum((byte & 127) << 7 * at for at, byte in enumerate(head[1:]))
                read += head
            if need:
                part = source.recv(need)
                read, need = read + part, need - len(part)
            waits = 0
        except BlockingIOError:
            waits += 1
    return read, dropped


def _wait(source: ReadAhead) -> bytes:
    while True:
        try:
            return source.recv(1)
        except BlockingIOError:
            continue


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["ignored", "kept"]), st.sampled_from([0, 5, 130, 70_000]), st.sampled_from([0, 1])),
    max_size=12,
)


@given(MESSAGES, st.lists(st.integers(0, 400_000), max_size=6))
def test_every_byte_that_is_not_ignored_is_read(messages: list[tuple[str, int, int]], cuts: list[int]) -> None:
    packets = [packet(topic, b"x" * size, qos, mid + 1) for mid, (topic, size, qos) in enumerate(messages)]
    stream, places = b"".join(packets), sorted({*cuts})
    pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]
    counted: list[int] = []
    source = ReadAhead(Line(pieces), counted.append)
    read, dropped = read_like_paho(source)
    assert sum(counted) == len(stream)
    assert source.pending() == 0
    at = 0
    for whole, (topic, _, qos), mid in zip(packets, messages, range(1, 100), strict=False):
        if read.startswith(whole, at):
            at += len(whole)
        else:  # a packet that was cut may pass
            assert topic == "ignored"
            assert not qos or struct.pack(">H", mid) in dropped
    assert at == len(read)


def test_whole_ignored_packets_are_dropped_and_named_for_the_acknowledgement() -> None:
    packets = [packet("ignored", b"x", 1, 7), packet("ignored", b"", 0, 0), packet("ignored", b"y", 1, 9)]
    source = ReadAhead(Line([b"".join([*packets, packet("kept", b"z", 1, 10)])]), lambda _: None)
    assert source.drop(lambda topic: topic == "ignored") == [b"\x00\x07", b"\x00\x09"]
    assert source.recv(100) == packet("kept", b"z", 1, 10)


def test_a_retained_message_is_never_dropped() -> None:
    assert parse_publish(packet("ignored", b"x", 1, 1, retained=True), 0) is None
    assert parse_publish(packet("ignored", b"x", 1, 1), 0) is not None


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_parsed_without_an_error(data: bytes) -> None:
    head = parse_publish(data, 0)
    assert head is None or 0 < head.end <= len(data)
