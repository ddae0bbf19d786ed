"""Fixtures for the agent's tests: a broker, a peer that plays the coordinator, an agent in a thread, jobs."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.hall import Hall
from tests.support.relay_bench import RelayBench
from tests.support.warm import ForkedProgram
from tests.unit.client.pool_driver import Driver, workers_of_this_process

from fedquilt_client import worker_process
from fedquilt_client.agent import Agent
from fedquilt_client.settings import AgentSettings
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.digests import digest_file
from fedquilt_common.training_jobs import CheckedFile, Job
from fedquilt_common.types import Scalar
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.chunks import Blob, ChunkHeader
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.message_base import WireMessage
from fedquilt_common.wire.messages import ReceiptMessage, RunMessage
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.wire.topics import AGENT_KINDS, Topics
from fedquilt_common.wire.transport import Connected, Incoming, MqttMessage, Transport, Will
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

PATIENCE = 60.0
FEDERATIONS = itertools.count()
ARRAYS = {"weight": np.arange(600, dtype=np.float32), "bias": np.linspace(-1, 1, 7, dtype=np.float32)}


def wait_for(done: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> Any:
    """Poll until ``done`` returns a true value, and return that value."""
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, f"waited {seconds} seconds for {what}"
        time.sleep(0.02)
    return found


@pytest.fixture(autouse=True)
def _warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training processes are forked from this process, which has loaded what they need."""
    monkeypatch.setattr(worker_process, "subprocess", SimpleNamespace(Popen=ForkedProgram, PIPE=subprocess.PIPE))


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., Any]:
    return wait_for


@contextlib.contextmanager
def running_broker(folder: Path, port: int) -> Iterator[int]:
    """Run a Mosquitto on ``port`` inside the ``with`` block."""
    with subprocess.Popen(broker_command(folder, port)) as child:
        try:
            wait_listening("127.0.0.1", port, timeout=PATIENCE)
            yield port
        finally:
            child.terminate()


@pytest.fixture
def start_broker(tmp_path: Path) -> Callable[[int], contextlib.AbstractContextManager[int]]:
    """Starts a Mosquitto on the port that the test chooses."""
    return lambda port: running_broker(tmp_path / "broker", port)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Mosquitto; each test uses a federation of its own."""
    with running_broker(tmp_path_factory.mktemp("broker"), free_port()) as port:
        yield port


class Peer:
    """Plays the coordinator with raw messages, and records all messages of the agents."""

    def __init__(self, port: int, federation: str, folder: Path) -> None:
        self.topics = Topics(federation)
        self.port = port
        self.folder = folder
        self.received: list[MqttMessage] = []
        self._connected = threading.Event()
        self._transport = MqttTransport(
            parse_broker_url(f"127.0.0.1:{port}"), f"{federation}-{id(self)}", self._deliver
        )
        self._transport.connect()
        assert self._connected.wait(PATIENCE)
        self._transport.subscribe(self.topics.filters(*AGENT_KINDS))

    def _deliver(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            self.received.append(incoming)
            incoming.ack()
        elif isinstance(incoming, Connected):
            self._connected.set()

    def close(self) -> None:
        self._transport.close()

    def publish(self, topic: str, message: WireMessage | bytes, *, header: bytes = b"", retain: bool = True) -> None:
        payload = message if isinstance(message, bytes) else message.encode()
        assert self._transport.publish(topic, payload, header=header, retain=retain)

    def settle(self) -> None:
        """Wait until the broker has all that was published: who subscribes then gets it as retained messages."""
        assert self._transport.drain(PATIENCE)

    def send_to(self, agent: str, message: WireMessage | bytes) -> None:
        """Publish to an agent's inbox."""
        self.publish(self.topics.inbox(agent), message, retain=False)

    def fill(self, slot: int, blob: Blob, chunk: int = 1024, leave_out: frozenset[int] = frozenset()) -> PatchMessage:
        """Publish a blob's chunks into a slot."""
        data = blob.path.read_bytes()
        for header in blob.headers(chunk):
            if header.index not in leave_out:
                part = data[header.offset : header.offset + header.length]
                self.publish(self.topics.slot_chunk(f"slices/{slot}", header.index), part, header=header.encode())
        return PatchMessage(slot=slot, digest=blob.digest, size=blob.size)

    def open(self, run: str, number: int, blob: Blob, clients: list[int], **changes: Any) -> RoundMessage:
        """Publish a round with one patch and one task."""
        task = TaskMessage(clients=clients, kind="train", patches=[0], scalars=changes.pop("scalars", {}))
        patch = self.fill(0, blob)
        fields = {"patches": [patch], "tasks": [task], **changes}
        message = RoundMessage(run=run, round=number, exchange=0, **fields)
        self.publish(self.topics.round, message)
        return message

    def messages(self, kind: str) -> list[MqttMessage]:
        """Return all messages of one kind so far."""
        return [message for message in self.received if self.topics.parse(message.topic).kind == kind]

    def chunks(self, client: int, number: int) -> list[tuple[ChunkHeader, bytes]]:
        """Return the chunks of a reply in the order of arrival, repetitions included."""
        found = []
        for message in self.messages("replies"):
            address = self.topics.parse(message.topic)
            if (address.client, address.round) == (client, number):
                found.append((ChunkHeader.decode(message.header), message.payload))
        return found

    def accept(self, client: int, number: int, run: str = "run-1", **changes: Any) -> None:
        """Send the receipt of a reply."""
        digest = self.chunks(client, number)[0][0].digest
        fields = {"run": run, "client": client, "round": number, "exchange": 0, "digest": digest}
        self.send_to("board", ReceiptMessage.model_validate({**fields, "outcome": "accepted", **changes}))

    def reply(self, client: int, number: int, *, accept: bool = True) -> FileArrays:
        """Wait for a whole reply, assemble it and accept it."""

        def whole() -> dict[int, bytes] | None:
            parts = {header.index: payload for header, payload in self.chunks(client, number)}
            return parts if parts and len(parts) == self.chunks(client, number)[0][0].count else None

        parts: dict[int, bytes] = wait_for(whole, f"the reply of client {client} in round {number}")
        path = self.folder / f"{client}-{number}.reply"
        path.write_bytes(b"".join(parts[i] for i in sorted(parts)))
        if accept:
            self.accept(client, number)
        return FileArrays(path)


@pytest.fixture
def meet(tmp_path: Path) -> Callable[[int, str], contextlib.AbstractContextManager[Peer]]:
    """Makes a peer at the broker and in the federation that the test chooses."""
    return lambda port, federation: contextlib.closing(Peer(port, federation, tmp_path))


@pytest.fixture
def peer(broker: int, tmp_path: Path) -> Iterator[Peer]:
    """A peer in a federation of its own."""
    with contextlib.closing(Peer(broker, f"test-{next(FEDERATIONS)}", tmp_path)) as peer:
        yield peer


@dataclass
class Hosted:
    """An agent that runs in a thread."""

    settings: AgentSettings
    stop: threading.Event = field(default_factory=threading.Event)
    wills: list[Will] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def start(self, port: int) -> threading.Thread:
        def make_transport(deliver: Callable[[Incoming], None], will: Will) -> Transport:
            self.wills.append(will)
            name = f"{self.settings.federation}-{self.settings.name}-{self.settings.state.name}"
            return MqttTransport(parse_broker_url(f"127.0.0.1:{port}"), name, deliver, will=will)

        agent = Agent(self.settings, make_transport)

        def work() -> None:
            try:
                agent.execute(self.stop.is_set)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        return thread


@contextlib.contextmanager
def hosted(peer: Peer, clients: tuple[int, ...] = (0, 1), **changes: Any) -> Iterator[Hosted]:
    """Run an agent ``board`` until the block ends; the next one finds its state in the peer's folder."""
    fields = {"federation": peer.topics.federation, "state": peer.folder / "state", **changes}
    host = Hosted(AgentSettings("board", clients, **fields))
    before = len(peer.messages("presence"))
    peer.settle()
    thread = host.start(peer.port)
    try:
        wait_for(lambda: len(peer.messages("presence")) > before, "presence")
        yield host
    finally:
        host.stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert host.errors == []


Host = Callable[..., contextlib.AbstractContextManager[Hosted]]


@pytest.fixture
def host(peer: Peer) -> Host:
    """``with host(clients=(0, 1)): ...`` runs an agent beside the peer."""
    return lambda **changes: hosted(peer, **changes)


@dataclass
class Kit:
    """Makes runs, jobs and user packages below a folder."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, name: str = "run-1", partition: str | None = None, **changes: Any) -> RunMessage:
        """Return a run of Echo, with ``changes`` to the experiment."""
        raw = {
            "name": "test",
            "data": {"set": "digits", "clients": 4},
            "model": {"name": "mlp"},
            "algorithm": {"name": "echo"},
            "wire": {"chunk": "1KiB"},
            **changes,
        }
        experiment = Experiment.model_validate(raw)
        return RunMessage(run=name, experiment=experiment.model_dump(mode="json"), partition=partition)

    def blob(self, arrays: Mapping[str, NDArray[Any]] = ARRAYS, name: str = "patch") -> Blob:
        """Write arrays to disk in the format in which they are sent."""
        return write_arrays(self.folder / f"{name}.safetensors", arrays)

    def job(self, run: RunMessage, client: int = 0, patches: list[Path] | None = None, **changes: Any) -> Job:
        """Return a job with paths of its own, and the digests of its patches."""
        number = next(self.numbers)
        run_file = self.folder / f"{run.run}.json"
        if not run_file.exists():
            run_file.write_text(run.model_dump_json())
        scalars: dict[str, Scalar] = {}
        fields = {
            "number": number, "run_file": run_file, "client": client, "round": 1, "exchange": 0, "kind": "train",
            "scalars": scalars, "fingerprint": "f" * 16, "memory": None, "allowed": [],
            "patches": [CheckedFile(path, digest_file(path, "xxh3")) for path in patches or [self.blob().path]],
            "reply": self.folder / f"{number}.reply", "memory_out": self.folder / f"{number}.memory", **changes,
        }  # fmt: skip
        return Job.model_validate(fields)

    def package(self, name: str, code: str) -> str:
        """Write a user's algorithm whose ``work`` has the body ``code``; return its name ``name:Own``."""
        place = self.folder / "packages"
        place.mkdir(exist_ok=True)
        body = "\n".join(f"        {line}" for line in code.splitlines())
        (place / f"{name}.py").write_text(
            "import os, signal, sys, time\nfrom pathlib import Path\n"
            "from fedquilt_common.algorithms.echo import Echo\nfrom fedquilt_common.algorithm_api import Reply\n"
            f"class Own(Echo):\n    def work(self, task, ctx):\n{body}\n        return super().work(task, ctx)\n\n"
            "    declares = Echo.declares\n"
        )
        self.monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))
        self.monkeypatch.syspath_prepend(place)
        return f"{name}:Own"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    return Kit(tmp_path, monkeypatch)


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver(getattr(request, "param", 1))
    yield driver
    driver.pool.close()
    assert workers_of_this_process() == []


@pytest.fixture
def seen(kit: Kit) -> Path:
    """A folder in which jobs leave a trace."""
    folder = kit.folder / "seen"
    folder.mkdir()
    kit.monkeypatch.setenv("SEEN", str(folder))
    return folder


@pytest.fixture
def hall(tmp_path: Path) -> Hall:
    """A relay's run, three boards behind its site, and a coordinator that the test plays."""
    return Hall(tmp_path)


@pytest.fixture
def bench(tmp_path: Path) -> RelayBench:
    """A relay of five clients, their store, and a coordinator that the test plays."""
    return RelayBench(tmp_path)
