"""A hostile MQTT 5 client that floods a federation as fast as it can; ``flood.py`` starts it as a process of its own.

    python benchmarks/flooder.py PORT FEDERATION KIND QOS

It writes packets to a socket itself, because an MQTT library would limit its rate. It reports the number of messages
on standard output when it ends.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator

AGENT = "flooder"
SMALL, LARGE = 100, 1024 * 1024
"""Bytes of the payload of a chunk."""
BATCH = 256
"""Packets that are written at once at QoS 0."""

Message = tuple[str, bytes, bytes, bool]
"""Topic below the federation, payload, Correlation Data, retained."""


def chunks(size: int) -> Iterator[Message]:
    """Yield chunks of replies of clients that the flooder does not host; every other one is the last of its reply."""
    for number in itertools.count():
        digest, index = struct.pack(">32s", b"%032d" % number), number % 2
        header = struct.pack(">B32sIIQ", 1, digest, index, 2, 2 * size)
        yield f"agents/{AGENT}/replies/{number % 4}/1.0/{index}", b"x" * size, header, False


def telemetry() -> Iterator[Message]:
    """Yield valid telemetry."""
    message = {"v": 1, "agent": AGENT, "boot": 1, "memory_used": 1, "training": {"1": 0.5}}
    for number in itertools.count():
        yield f"agents/{AGENT}/telemetry", json.dumps(message | {"memory_used": number}).encode(), b"", False


def presences() -> Iterator[Message]:
    """Yield presences, each of them changed, that claim another agent's clients."""
    for number in itertools.count():
        message = {"v": 1, "agent": AGENT, "online": True, "boot": number, "clients": [number % 4]}
        yield f"agents/{AGENT}/presence", json.dumps(message).encode(), b"", True


def names() -> Iterator[Message]:
    """Yield the presences of many agents."""
    for number in itertools.count():
        name = f"{AGENT}-{number}"
        message = {"v": 1, "agent": name, "online": True, "boot": 1, "clients": [number % 4]}
        yield f"agents/{name}/presence", json.dumps(message).encode(), b"", False


KINDS: dict[str, Callable[[], Iterator[Message]]] = {
    "replies": lambda: chunks(SMALL),
    "large": lambda: chunks(LARGE),
    "telemetry": telemetry,
    "presence": presences,
    "names": names,
}


def _text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _packet(first: int, body: bytes) -> bytes:
    length, left = b"", len(body)
    while True:
        left, digit = left >> 7, left & 127
        length += bytes([digit | (128 if left else 0)])
        if not left:
            return bytes([first]) + length + body


def _publish(prefix: str, message: Message, qos: int, number: int) -> bytes:
    topic, payload, header, retain = message
    properties = b"\x09" + _text(header) if header else b""
    body = _text(f"{prefix}{topic}".encode()) + (struct.pack(">H", number % 65535 + 1) if qos else b"")
    return _packet(0x30 | qos << 1 | retain, body + bytes([len(properties)]) + properties + payload)


def _read_packet(reader: socket.SocketIO) -> bytes:
    """Return the body of the next packet; all packets of the broker are short."""
    head = reader.read(2)
    return b"" if head is None or len(head) < 2 else reader.read(head[1]) or b""


def flood(port: int, federation: str, kind: str, qos: int) -> int:
    """Publish until the process gets SIGTERM or the broker disconnects it; returns the number of messages."""
    ended = False

    def stop(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, stop)
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as reader:
        client_id = f"flooder-{os.getpid()}".encode()
        connection.sendall(_packet(0x10, _text(b"MQTT") + b"\x05\x02\x00\x00\x00" + _text(client_id)))
        _read_packet(reader)  # type: ignore[arg-type]
        messages, sent = KINDS[kind](), 0
        batch = (1 if kind == "large" else BATCH) if not qos else 16  # brokers take 20 without acknowledgement
        while not ended:
            packets = [_publish(f"fedquilt/v1/{federation}/", next(messages), qos, sent + i) for i in range(batch)]
            try:
                connection.sendall(b"".join(packets))
                for _ in packets if qos else ():
                    _read_packet(reader)  # type: ignore[arg-type]
            except OSError:
                break
            sent += batch
    return sent


if __name__ == "__main__":
    print(flood(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
