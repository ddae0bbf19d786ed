"""Targets: topics, control messages, chunk headers and transfers, as a peer may send them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedquilt_client.link_setup import link_for_client
from fedquilt_client.tasks import read_experiment
from fedquilt_common.errors import DamagedTransferError, FedquiltError, PayloadError, ProtocolError, SliceError
from fedquilt_common.submodels.slices import IndexSet
from fedquilt_common.wire import messages
from fedquilt_common.wire.bitmaps import decode_bitmap, encode_bitmap
from fedquilt_common.wire.chunks import Assembly, ChunkHeader
from fedquilt_common.wire.message_base import WireMessage
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.parsing import parse, parse_inbox, parse_telemetry
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage

MODELS: tuple[type[WireMessage], ...] = (
    messages.CoordinatorPresence, RunMessage, RoundMessage, messages.AgentPresence, messages.Telemetry,
    messages.ReceiptMessage, messages.MissingMessage, messages.StopMessage, messages.FailedMessage,
    messages.ReplyHeader, messages.EndMessage,
)  # fmt: skip
TOPICS = Topics("lab")
LIMIT = 4096
"""Largest transfer in bytes that the chunks' receiver expects."""


def read_topic(data: bytes, _: Path) -> None:
    """Parse a topic; the same levels make the same topic again."""
    topic = data.decode("utf-8", "replace")
    address = TOPICS.parse(topic)
    if address.kind == "replies":
        numbers = address.client, address.round, address.exchange, address.chunk
        assert TOPICS.reply_chunk(address.agent, *numbers) == topic
    elif address.kind in ("slices", "soft-labels"):
        assert TOPICS.slot_chunk(address.place, address.chunk) == topic


def read_message(data: bytes, _: Path) -> None:
    """Parse a message whose type the first byte chooses."""
    kind, payload = data[0] if data else 0, data[1:]
    if kind % 13 == 11:
        message: WireMessage = parse_inbox(payload, "inbox")
    elif kind % 13 == 12:
        message = parse_telemetry(payload, "telemetry")
    else:
        message = parse(MODELS[kind % 13], payload, "topic")
    again = parse(type(message), message.encode(), "again")
    assert again.encode() == message.encode()
    if isinstance(message, RoundMessage):
        _use_round(message)


def _use_round(message: RoundMessage) -> None:
    """Do what an agent does with a manifest before it has downloaded anything."""
    for task in message.tasks:
        message.sub_models(task)
        for client in task.clients:
            assert len(message.fingerprint(task, client)) == 16
            message.memory_of(client)


def read_run(data: bytes, _: Path) -> None:
    """Parse an experiment as an agent receives it, with the client's link in it."""
    try:
        experiment = json.loads(data)
    except (ValueError, RecursionError):
        raise PayloadError("not JSON") from None
    payload = json.dumps({"v": 1, "run": "r", "experiment": experiment}).encode()
    link_for_client(MqttMessage("run", payload, b"", True, lambda: None), 0)
    read_experiment(parse(RunMessage, payload, "run"))


def read_bitmap(data: bytes, _: Path) -> None:
    """Decode a bitmap; the first two bytes are the number of chunks."""
    count, text = int.from_bytes(data[:2], "big"), data[2:].decode("latin-1")
    indices = decode_bitmap(text, count)
    assert decode_bitmap(encode_bitmap(indices, count), count) == indices


def read_index_set(data: bytes, _: Path) -> None:
    """Decode an index set of a sub-model; the first two bytes are the number of channels."""
    size, rest = int.from_bytes(data[:2], "big"), data[2:]
    encoded: Any = rest[1:].decode("latin-1")
    if rest[:1] < b"\x80":  # a list of bounds, of which some are beyond every model
        encoded = [int.from_bytes(rest[i : i + 3], "big", signed=i % 2 == 0) for i in range(1, len(rest), 3)]
    index_set = IndexSet.decode(size, encoded)
    assert IndexSet.decode(size, index_set.encode()).indices.tolist() == index_set.indices.tolist()


def read_chunks(data: bytes, folder: Path) -> None:
    """Receive chunks, each with the length of its header and of its payload before it."""
    assembly: Assembly | None = None
    while data:
        ends = data[0], data[0] + int.from_bytes(data[1:3], "big")
        header_bytes, payload, data = data[3 : 3 + ends[0]], data[3 + ends[0] : 3 + ends[1]], data[3 + ends[1] :]
        header = ChunkHeader.decode(header_bytes)
        assert header.encode() == header_bytes
        assembly = assembly or Assembly(folder / "part", header, LIMIT)
        if _add(assembly, header, payload):
            blob = assembly.finish(folder / "whole")
            assert blob.path.stat().st_size == blob.size <= LIMIT + len(header_bytes)
            return


def _add(assembly: Assembly, header: ChunkHeader, payload: bytes) -> bool:
    """Add a chunk as a receiver does: a damaged one is left out, the rest of the transfer goes on."""
    missing = assembly.missing
    try:
        return assembly.add(header, payload)
    except DamagedTransferError:
        assert assembly.missing == missing
        return False


def check_run(data: bytes, folder: Path) -> None:
    """As ``read_run``, with pydantic's errors where the agent reports them itself."""
    try:
        read_run(data, folder)
    except ValidationError as error:
        raise AssertionError(f"an error of pydantic reached the agent: {error}") from error


Errors = tuple[type[FedquiltError], ...]
TARGETS = {
    "topics": (read_topic, (ProtocolError,), 300),
    "messages": (read_message, (ProtocolError,), 4096),
    "runs": (check_run, (ProtocolError,), 4096),
    "bitmaps": (read_bitmap, (PayloadError,), 1024),
    "index-sets": (read_index_set, (SliceError,), 1024),
    "chunks": (read_chunks, (PayloadError,), 8192),
}
