"""PUBLISH packets of MQTT 5: how they begin, the properties that fedquilt uses as bytes, and their acknowledgements.

paho takes 100 microseconds for the properties of a packet, because it prepares for each that MQTT knows. Here it is 5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_EXPIRY, _HEADER = 0x02, 0x09
"""Identifiers of the Message Expiry Interval and of the Correlation Data, which carries a chunk's header."""
_PUBLISH: Final = 0x30
_QOS: Final = 0x06
_RETAIN: Final = 0x01
_FAILURE: Final = 0x80
"""The first reason code that is a failure."""
_LENGTH_BYTES: Final = 4
"""Most bytes of a length in MQTT."""


class PublishHead(NamedTuple):
    """What comes before the payload.

    Attributes:
        mid: packet identifier; 0 for QoS 0.
        header: the Correlation Data; empty without.
        expires_in: the Message Expiry Interval in seconds; None without.
        payload_at: where the payload begins.
    """

    topic: str
    qos: int
    retained: bool
    mid: int
    header: bytes
    expires_in: int | None
    payload_at: int


@dataclass(frozen=True)
class PublishBegin:
    """The beginning of a packet; the rest may not have arrived yet.

    Attributes:
        mid: packet identifier; empty for QoS 0.
        end: where the packet ends, which may be behind the end of the data.
    """

    topic: str
    mid: bytes
    end: int


class PackedProperties:
    """The properties of a packet as paho packs them.

    Args:
        expiry: Message Expiry Interval in seconds.
        header: Correlation Data; empty for none.
    """

    def __init__(self, expiry: int, header: bytes) -> None:
        packed = struct.pack(">BI", _EXPIRY, expiry)
        if header:
            packed += struct.pack(">BH", _HEADER, len(header)) + header
        self._packed = pack_length(len(packed)) + packed

    def pack(self) -> bytes:
        """Return the properties, after their length."""
        return self._packed


class PublishPacket:
    """A packet to send, whose payload is not copied: a slice from a byte on is a view of head or payload.

    Args:
        first: the packet's first byte.
        topic: as UTF-8.
        mid: packet identifier; 0 for QoS 0, which has none.
        properties: packed, after their length.
        payload: what follows the head.
    """

    def __init__(self, first: int, topic: bytes, mid: int, properties: bytes, payload: bytes | bytearray) -> None:
        named = struct.pack(">H", len(topic)) + topic + (struct.pack(">H", mid) if mid else b"") + properties
        self._head = memoryview(bytes([first]) + pack_length(len(named) + len(payload)) + named)
        self._payload = memoryview(payload)

    def __len__(self) -> int:
        return len(self._head) + len(self._payload)

    def __getitem__(self, rest: slice) -> memoryview:
        at = rest.start
        return self._head[at:] if at < len(self._head) else self._payload[at - len(self._head) :]


def is_success(acknowledgement: bytearray) -> bool:
    """Whether the content of a PUBACK only confirms that the broker has the message."""
    return len(acknowledgement) == 2 or (len(acknowledgement) == 3 and acknowledgement[2] < _FAILURE)


def pack_length(length: int) -> bytes:
    """Return a length of MQTT as bytes, seven bits in each."""
    packed = bytearray()
    while length > 127:
        packed.append(length & 127 | 128)
        length >>= 7
    packed.append(length)
    return bytes(packed)


def parse_length(data: Sequence[int], at: int) -> tuple[int | None, int]:
    """Return a length, and where what it counts begins; the length is None if it has too many bytes.

    Raises:
        IndexError: the data ends before the length.
    """
    length = 0
    for number in range(_LENGTH_BYTES):
        byte = data[at + number]
        length |= (byte & 127) << 7 * number
        if byte < 128:
            return length, at + number + 1
    return None, at


def parse_publish(data: bytes, at: int) -> PublishBegin | None:
    """Return how the packet at ``at`` begins; None if it is not a PUBLISH, is retained, or is malformed.

    Raises:
        IndexError: the data ends before what it returns.
    """
    first = data[at]
    if first & (0xF0 | _RETAIN) != _PUBLISH:
        return None
    length, position = parse_length(data, at + 1)
    if length is None or length < 2:
        return None
    end, (topic_end, mid_end) = position + length, _find_ends(first, data, position)
    if mid_end > end:
        return None
    if mid_end > len(data):
        raise IndexError
    return PublishBegin(data[position + 2 : topic_end].decode("utf-8", "replace"), data[topic_end:mid_end], end)


def _find_ends(first: int, data: Sequence[int], at: int) -> tuple[int, int]:
    """Return where the topic and the packet identifier end, of a packet whose topic's length is at ``at``."""
    topic_end = at + 2 + (data[at] << 8 | data[at + 1])
    return topic_end, topic_end + (2 if first & _QOS else 0)


def parse_head(first: int, packet: bytearray) -> PublishHead | None:
    """Return the head of a packet; None if it is malformed, or has QoS 2 or other properties.

    Args:
        first: the packet's first byte.
        packet: what comes after the packet's length.
    """
    try:
        return _parse(first, packet)
    except (IndexError, UnicodeDecodeError, struct.error):
        return None


def _parse(first: int, packet: bytearray) -> PublishHead | None:
    qos, (topic_end, mid_end) = (first & _QOS) >> 1, _find_ends(first, packet, 0)
    length, at = parse_length(packet, mid_end)
    if length is None or qos > 1 or at + length > len(packet):
        return None
    found = _parse_properties(packet, at, at + length)
    if found is None:
        return None
    mid = int.from_bytes(packet[topic_end:mid_end], "big")
    return PublishHead(packet[2:topic_end].decode(), qos, bool(first & _RETAIN), mid, *found, at + length)


def _parse_properties(packet: bytearray, at: int, end: int) -> tuple[bytes, int | None] | None:
    """Return header and expiry; None if there are other properties, or one comes twice."""
    header, expiry = None, None
    while at < end:
        kind = packet[at]
        if kind == _EXPIRY and expiry is None:
            (expiry,) = struct.unpack_from(">I", packet, at + 1)
            at += 5
        elif kind == _HEADER and header is None:
            start = at + 3
            at = start + (packet[at + 1] << 8 | packet[at + 2])
            header = bytes(packet[start:at])
        else:
            return None
    return None if at > end else (header or b"", expiry)
