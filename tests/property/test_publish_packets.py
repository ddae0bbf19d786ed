"""PUBLISH packets are packed and parsed as paho does it; what fedquilt does not send is left to paho."""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt._packet import decode_puback, decode_publish
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fedquilt_common.wire.mqtt_client import CountingClient
from fedquilt_common.wire.publish_packets import PackedProperties, PublishHead, is_success, parse_head

TOPIC: Final = "fedquilt/v1/lab/round"
HEADERS = st.binary(max_size=300)
EXPIRIES = st.integers(0, 2**32 - 1)


def paho_properties(**values: object) -> bytes:
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    packed: bytes = properties.pack()
    return packed


def packet(properties: bytes, payload: bytes = b"payload", qos: int = 1, topic: bytes = TOPIC.encode()) -> bytearray:
    """Return what follows the length of a packet of MQTT 5."""
    mid = struct.pack(">H", 7) if qos else b""
    return bytearray(struct.pack(">H", len(topic)) + topic + mid + properties + payload)


@given(EXPIRIES, HEADERS)
def test_properties_are_packed_as_paho_packs_them(expiry: int, header: bytes) -> None:
    values = {"MessageExpiryInterval": expiry, **({"CorrelationData": header} if header else {})}
    assert PackedProperties(expiry, header).pack() == paho_properties(**values)


def queued(kind: type[Client], *publication: object) -> Any:
    """Return the packet that a client queues for a publication."""
    client: Any = kind(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    with closing(socket.socket()) as client._sock:
        client._send_publish(*publication)
    client._sock = None
    return client._out_packet.pop()["packet"]


@given(
    st.text(min_size=1, max_size=200), st.binary(max_size=300), st.integers(0, 2), st.booleans(), st.booleans(),
    st.none() | HEADERS, st.lists(st.integers(1, 200)),
)  # fmt: skip
def test_publications_are_packed_as_paho_packs_them(
    topic: str, payload: bytes, qos: int, retained: bool, again: bool, header: bytes | None, sent: list[int]
) -> None:
    """In whatever pieces the socket takes them."""
    given = (
        7,
        topic.encode(),
        payload,
        qos,
        retained,
        again,
        None,
        None if header is None else PackedProperties(60, header),
    )
    packet, expected = queued(CountingClient, *given), queued(Client, *given)
    assert len(packet) == len(expected)
    pieces, at = [], 0
    while at < len(packet):
        pieces.append(packet[at:][: sent.pop() if sent else None])
        at += len(pieces[-1])
    assert b"".join(pieces) == expected


@given(EXPIRIES | st.none(), HEADERS, st.binary(max_size=300), st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_heads_are_parsed_as_paho_parses_them(
    expiry: int | None, header: bytes, payload: bytes, qos: int, retained: bool, again: bool
) -> None:
    values = {"MessageExpiryInterval": expiry, "CorrelationData": header or None}
    content = packet(
        paho_properties(**{name: value for name, value in values.items() if value is not None}), payload, qos
    )
    first = 0x30 | again << 3 | qos << 1 | retained
    head = parse_head(first, content)
    assert head == PublishHead(TOPIC, qos, retained, 7 if qos else 0, header, expiry, len(content) - len(payload))
    decoded = decode_publish(first, content, MQTTProtocolVersion.MQTTv5)
    assert (decoded.topic.decode(), decoded.qos, decoded.retain, decoded.mid) == head[:4]
    assert decoded.payload == payload


@pytest.mark.parametrize(
    ("content", "first"),
    [
        (packet(paho_properties(ContentType="text")), 0x32),
        (packet(paho_properties(UserProperty=("name", "value"))), 0x32),
        (packet(paho_properties(MessageExpiryInterval=1)), 0x34),
        (packet(b"\0", topic=b"\xff"), 0x32),
        (packet(b"\x0a\2\0\0\0\1\2\0\0\0\1"), 0x32),
        (packet(b"\x0a\2\0\0\0\1\x09\0\5", b""), 0x32),
        (packet(b"\xff\xff\xff\xff\1"), 0x32),
        (packet(b"\x7f", b""), 0x32),
        (packet(b"", b""), 0x32),
        (bytearray(b"\0\5top"), 0x32),
        (bytearray(), 0x32),
    ],
    ids=["another property", "a user property", "QoS 2", "no UTF-8", "a property twice", "a property beyond the end",
         "no length", "a length beyond the end", "no properties", "no topic", "nothing"],
)  # fmt: skip
def test_paho_decides_what_happens_to_other_packets(content: bytearray, first: int) -> None:
    assert parse_head(first, content) is None


@given(EXPIRIES, st.binary(max_size=20), st.data())
def test_what_paho_refuses_is_never_accepted(expiry: int, header: bytes, data: st.DataObject) -> None:
    content = packet(PackedProperties(expiry, header).pack())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    head = parse_head(0x32, content)
    if head is not None:
        decoded = decode_publish(0x32, content, MQTTProtocolVersion.MQTTv5)
        assert (decoded.topic.decode(), decoded.payload) == (head.topic, content[head.payload_at :])


@given(
    st.integers(1, 65535), st.sampled_from([b"", b"\x00", b"\x10", b"\x80", b"\x87", b"\x97", b"\x00\x00", b"\x10\x00"])
)
def test_what_is_no_plain_acknowledgement_is_left_to_paho(mid: int, rest: bytes) -> None:
    """0x10 says that nobody has subscribed, 0x80 and above that the broker refused the message."""
    content = bytearray(struct.pack(">H", mid) + rest)
    decoded = decode_puback(0x40, content, MQTTProtocolVersion.MQTTv5)
    assert is_success(content) == (len(rest) < 2 and not decoded.reason.is_failure)
