"""Publishing a blob's chunks: which, where, and what happens when the connection is lost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from fedquilt_common.wire.chunks import Blob, ChunkHeader, publish_chunks
from fedquilt_common.wire.transport import Transport

PAYLOAD = bytes(range(100))
Sent = tuple[str, bytes, bytes, bool]


@dataclass
class Recorder:
    """A transport that takes ``room`` messages and then has no connection."""

    room: int = 1000
    sent: list[Sent] = field(default_factory=list)

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        if len(self.sent) == self.room:
            return False
        self.sent.append((topic, payload, header, retain))
        return True


def publish(recorder: Recorder, blob: Blob, headers: list[ChunkHeader], *, retain: bool = False) -> bool:
    return publish_chunks(cast("Transport", recorder), blob, headers, "slices/0/{}".format, retain=retain)


@pytest.fixture
def blob(tmp_path: Path) -> Blob:
    (tmp_path / "payload").write_bytes(PAYLOAD)
    return Blob(tmp_path / "payload", hashlib.sha256(PAYLOAD).hexdigest(), len(PAYLOAD))


@pytest.mark.parametrize("retain", [False, True])
def test_every_chunk_has_its_topic_header_and_bytes(blob: Blob, retain: bool) -> None:
    recorder, headers = Recorder(), blob.headers(40)
    assert publish(recorder, blob, headers, retain=retain)
    assert [(topic, flag) for topic, _, _, flag in recorder.sent] == [(f"slices/0/{i}", retain) for i in range(3)]
    assert b"".join(payload for _, payload, _, _ in recorder.sent) == PAYLOAD
    assert [ChunkHeader.decode(header) for _, _, header, _ in recorder.sent] == headers


def test_some_chunks_in_the_given_order(blob: Blob) -> None:
    recorder, headers = Recorder(), blob.headers(40)
    assert publish(recorder, blob, [headers[2], headers[0]])
    assert [(topic, payload) for topic, payload, _, _ in recorder.sent] == [
        ("slices/0/2", PAYLOAD[68:]),
        ("slices/0/0", PAYLOAD[:34]),
    ]


def test_a_head_travels_in_the_header_only(blob: Blob) -> None:
    recorder, labels = Recorder(), Blob(blob.path, blob.digest, blob.size, head=20)
    assert publish(recorder, labels, labels.headers(40))
    assert b"".join(payload for _, payload, _, _ in recorder.sent) == PAYLOAD[20:]
    assert ChunkHeader.decode(recorder.sent[0][2]).head == PAYLOAD[:20]


def test_a_lost_connection_ends_it(blob: Blob) -> None:
    recorder, before = Recorder(room=2), set(Path("/proc/self/fd").iterdir())
    assert not publish(recorder, blob, blob.headers(10))
    assert len(recorder.sent) == 2
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_no_chunks_are_published_at_once(blob: Blob) -> None:
    assert publish(Recorder(room=0), blob, [])
