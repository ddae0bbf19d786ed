"""Samples go to the agent that hosts their client, a limited number of times, and to nobody else."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.errors import PayloadError, RunFolderError
from fedquilt_common.wire.chunks import CHUNK, ChunkHeader
from fedquilt_common.wire.data_messages import DataMessage, DataRequest
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Incoming, MqttMessage
from fedquilt_server.coordinator.data_service import MOST_TIMES, DataService
from fedquilt_server.lab.delivery import Delivery
from fedquilt_server.round.machine import Machine

TOPICS = Topics("lab")
CONTENT = {"one": b"1" * 105, "two": b"2" * 105, "public": b"p" * 20}
HOSTS = {0: "pi", 1: "jetson"}


def digest(name: str) -> str:
    return hashlib.sha256(CONTENT[name]).hexdigest()


class Lab:
    """A data service, and an agent that subscribes to all that agents may read."""

    def __init__(self, folder: Path, chunk: int = 10) -> None:
        broker = MemoryBroker()
        self.received: dict[str, list[MqttMessage]] = {"pi": [], "jetson": []}
        for name in self.received:
            transport = MemoryTransport(broker, name, functools.partial(self._take, name))
            transport.connect()
            transport.subscribe(TOPICS.agent_filters(name))
        self.sender = sender = MemoryTransport(broker, "coordinator", lambda _: None)
        sender.connect()
        for name, content in CONTENT.items():
            (folder / name).write_bytes(content)
        delivery = Delivery(
            DataMessage(name="made", shape=[1], dtype="uint8", classes=2, task=""),
            {digest(name): folder / name for name in CONTENT},
            {digest("one"): frozenset([0]), digest("two"): frozenset([1])},
        )
        machine = cast("Machine", SimpleNamespace(host_of=HOSTS))
        self.service = DataService("run", delivery, sender, TOPICS, chunk, machine)

    def _take(self, name: str, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            self.received[name].append(incoming)

    def ask(self, agent: str, wanted: str, **fields: Any) -> bytes:
        """Request chunks, and return the bytes that arrive."""
        self.received[agent].clear()
        request = {"run": "run", "digest": digest(wanted), "first": 0, "count": 64, **fields}
        self.service.take(agent, DataRequest.model_validate(request))
        for message in self.received[agent]:
            assert ChunkHeader.decode(message.header).digest == digest(wanted)
        return b"".join(message.payload for message in self.received[agent])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_an_agent_receives_the_samples_of_its_client_and_the_public_ones(lab: Lab) -> None:
    assert lab.ask("pi", "one") == CONTENT["one"]
    assert lab.ask("pi", "public") == CONTENT["public"]
    assert lab.received["jetson"] == []
    assert lab.sender.bytes_sent > 125


def test_a_few_chunks(lab: Lab) -> None:
    assert lab.ask("jetson", "two", first=9, count=5) == CONTENT["two"][90:]
    assert lab.ask("jetson", "two", first=11) == b""


def test_the_chunks_of_a_large_file_stay_small(tmp_path: Path) -> None:
    """Else sixteen of them for each of many agents would fill the broker's memory."""
    lab = Lab(tmp_path, chunk=4 * CHUNK)
    os.truncate(tmp_path / "one", 200 * CHUNK)
    assert len(lab.ask("pi", "one", count=2)) == 2 * CHUNK


@pytest.mark.parametrize("wanted", ["two", "one"])
def test_the_samples_of_other_clients_are_refused(lab: Lab, wanted: str) -> None:
    agent = "pi" if wanted == "two" else "jetson"
    with pytest.raises(
        PayloadError, match=rf"agent {agent} requested samples {digest(wanted)[:12]}... of other clients"
    ):
        lab.ask(agent, wanted)
    assert lab.sender.bytes_sent == 0


def test_unknown_samples_are_refused(lab: Lab) -> None:
    with pytest.raises(PayloadError, match="of other clients"):
        lab.ask("pi", "one", digest="0" * 64)


def test_another_run_and_an_agent_without_clients_get_nothing(lab: Lab) -> None:
    assert lab.ask("pi", "one", run="another") == b""
    lab.service.take("stranger", DataRequest(run="run", digest=digest("one"), first=0, count=1))
    assert lab.sender.bytes_sent == 0


def test_an_agent_that_asks_again_and_again_is_refused(lab: Lab) -> None:
    times = 0
    with contextlib.suppress(PayloadError):
        while times < 100:
            lab.ask("pi", "one")
            times += 1
    assert MOST_TIMES <= times < 15
    with pytest.raises(PayloadError, match=f"received its samples {MOST_TIMES} times"):
        lab.ask("pi", "one")


def test_a_file_that_is_gone_is_an_error_of_the_run_folder(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "one").unlink()
    with pytest.raises(RunFolderError, match="one cannot be used"):
        lab.ask("pi", "one")
