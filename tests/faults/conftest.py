"""A coordinator on a broker in memory, and agents that the test plays with raw messages, all in one thread."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.digests import digest_bytes, kind_of
from fedquilt_common.types import Arrays, Assignments
from fedquilt_common.wire.bitmaps import decode_bitmap
from fedquilt_common.wire.chunks import Blob, ChunkHeader
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import (
    REPLY_KEY,
    AgentPresence,
    CoordinatorPresence,
    MissingMessage,
    ReceiptMessage,
    ReplyHeader,
    StopMessage,
    Telemetry,
)
from fedquilt_common.wire.parsing import parse_inbox
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, MqttMessage, Transport, Will
from fedquilt_server.coordinator.coordinator import Coordinator
from fedquilt_server.round.events import Event, Rejected
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.tools.bench import bench_experiment

CHUNK = 4096
TOPICS = Topics("lab")
FLEET = {"pi": (0, 1), "jetson": (2,)}


def experiment(rounds: int = 2, megabytes: float = 0.012) -> Experiment:
    """Return an experiment with three clients, a model of a few chunks, and no training."""
    raw = bench_experiment(2, 3, megabytes, rounds).model_dump(mode="json")
    return Experiment.model_validate({**raw, "wire": {"chunk": CHUNK}})


@pytest.fixture(scope="module", params=["files", "files together", "segments"])
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """How replies become durable: one after the other or together, in files of their own or in a segment."""
    cases = {"files": (1, CHUNK), "files together": (64, CHUNK), "segments": (64, 1 << 18)}
    together, chunk = cases[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedquilt_server.coordinator.coordinator.REPLIES_TOGETHER", together)
        patch.setattr("tests.faults.conftest.CHUNK", chunk)
        yield request.param


def answer(model: Arrays, client: int) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return the reply of an honest client; it differs by client, so the mean shows how often each one counted."""
    return {name: x + np.float32(1 + client) / np.float32(3) for name, x in model.items()}


@dataclass
class Parcel:
    """One reply on the wire: the numbers in its topic, and its chunks."""

    agent: str
    client: int
    round: int
    exchange: int
    blob: Blob
    headers: list[ChunkHeader] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.headers = self.headers or self.blob.headers(CHUNK)

    def topic(self, index: int) -> str:
        return TOPICS.reply_chunk(self.agent, self.client, self.round, self.exchange, index)

    def bytes_of(self, header: ChunkHeader) -> bytes:
        return self.blob.path.read_bytes()[header.offset : header.offset + header.length]


class Player:
    """An agent that the test plays: keeps messages, replies to rounds on command, and resends chunks on request."""

    def __init__(self, name: str, folder: Path, make_transport: Callable[[str, Deliver], Transport]) -> None:
        self.name = name
        self.folder = folder
        self.transport = make_transport(f"agent-{name}", self._take)
        self.inbox: list[ReceiptMessage | MissingMessage | StopMessage] = []
        self.round: RoundMessage | None = None
        self.ended = False
        self.boot = 0
        self.sent: dict[str, Parcel] = {}
        self._incoming: list[MqttMessage] = []
        self._slices: dict[str, dict[int, bytes]] = {}

    def _take(self, incoming: object) -> None:
        if isinstance(incoming, MqttMessage):
            self._incoming.append(incoming)

    def arrive(self, clients: tuple[int, ...], boot: int = 1) -> None:
        self.transport.connect()
        self.appear(clients, boot)

    def appear(self, clients: tuple[int, ...], boot: int = 1) -> None:
        """Publish the presence, and subscribe."""
        self.boot = boot
        here = AgentPresence(agent=self.name, online=True, boot=boot, clients=list(clients))
        self.transport.publish(TOPICS.presence(self.name), here.encode(), retain=True)
        self.transport.subscribe([*TOPICS.agent_filters(self.name), TOPICS.slot_chunks("slices/0")])

    def listen(self) -> None:
        """Handle all messages that have arrived."""
        while self._incoming:
            message = self._incoming.pop(0)
            self._hear(message)
            message.ack()

    def _hear(self, message: MqttMessage) -> None:
        kind = TOPICS.parse(message.topic).kind
        if kind == "slices" and message.payload:
            header = ChunkHeader.decode(message.header)
            self._slices.setdefault(header.digest, {})[header.index] = message.payload
        elif kind == "round" and message.payload:
            self.round = RoundMessage.model_validate_json(message.payload)
        elif kind == "coordinator" and message.payload:
            self._greet(CoordinatorPresence.model_validate_json(message.payload))
        elif kind == "end" and message.payload:
            self.ended = True
        elif kind == "inbox":
            self._obey(parse_inbox(message.payload, message.topic))

    def _greet(self, coordinator: CoordinatorPresence) -> None:
        """Send telemetry to a coordinator that has started, as an agent does."""
        if coordinator.online:
            self.report()

    def report(self) -> None:
        """Send telemetry."""
        self.say(TOPICS.telemetry(self.name), Telemetry(agent=self.name, boot=self.boot).encode())

    def _obey(self, message: object) -> None:
        assert isinstance(message, ReceiptMessage | MissingMessage | StopMessage)
        self.inbox.append(message)
        if isinstance(message, MissingMessage) and message.digest in self.sent:
            parcel = self.sent[message.digest]
            self.send_chunks(parcel, [parcel.headers[i] for i in decode_bitmap(message.bitmap, len(parcel.headers))])

    @property
    def receipts(self) -> list[ReceiptMessage]:
        return [one for message in self.inbox if isinstance(message, ReceiptMessage) for one in message.divide()]

    def model(self) -> FileArrays | None:
        """Return the open exchange's model; None until all its chunks have arrived."""
        if self.round is None or not self.round.patches:
            return None
        patch = self.round.patches[0]
        path = self.folder / f"{self.name}-{patch.digest}"
        if not path.exists():
            content = b"".join(data for _, data in sorted(self._slices.get(patch.digest, {}).items()))
            if digest_bytes(content, kind_of(patch.digest)) != patch.digest:
                return None
            path.write_bytes(content)
        return FileArrays(path)

    def pack(
        self, client: int, /, arrays: Arrays | None = None, header: Callable[[str], str] = str, **changes: Any
    ) -> Parcel:
        """Return a reply to the open exchange; the arguments change its arrays, header fields or header text."""
        assert self.round is not None
        model = self.model()
        assert model is not None
        task = next(t for t in self.round.tasks)
        known: dict[str, Any] = {
            "run": self.round.run, "round": self.round.round, "exchange": self.round.exchange, "client": client,
            "task": self.round.fingerprint(task, client), "weight": 1.0 + client,
        }  # fmt: skip
        text = header(ReplyHeader.model_construct(**{**known, **changes}).model_dump_json())
        path = self.folder / f"{self.name}-reply-{len(list(self.folder.iterdir()))}"
        blob = write_arrays(path, answer(model, client) if arrays is None else arrays, "fp32", {REPLY_KEY: text})
        return Parcel(self.name, client, known["round"], known["exchange"], blob)

    def send(self, parcel: Parcel) -> Parcel:
        """Send all chunks, in order."""
        self.sent[parcel.blob.digest] = parcel
        self.send_chunks(parcel, parcel.headers)
        return parcel

    def send_chunks(self, parcel: Parcel, headers: list[ChunkHeader]) -> None:
        for header in headers:
            self.say(parcel.topic(header.index), parcel.bytes_of(header), header.encode())

    def say(self, topic: str, payload: bytes, header: bytes = b"") -> None:
        self.transport.publish(topic, payload, header=header)


Turn = Callable[["Player", RoundMessage], object]


class Stage:
    """A run folder, a broker in memory, the coordinator that is driven step by step, and the honest agents."""

    def __init__(self, folder: Path, rounds: int = 2) -> None:
        self.experiment = experiment(rounds)
        self.folder = folder / "run"
        self.scratch = folder / "agents"
        self.scratch.mkdir(parents=True)
        self.broker = MemoryBroker()
        self.board = StatusStore()
        self.players = {name: self.player(name) for name in FLEET}
        self.assignments = Assignments()
        self.ways: dict[int, Turn] = {}
        """How a client sends its reply, if not in order and all at once."""
        self._answered: set[tuple[str, int]] = set()
        self._offered: dict[str, RoundMessage] = {}

    def player(self, name: str) -> Player:
        return Player(name, self.scratch, lambda who, deliver: MemoryTransport(self.broker, who, deliver))

    def arrive(self) -> None:
        for name, player in self.players.items():
            player.arrive(FLEET[name])

    def coordinator(self, wrap: Callable[[Deliver], Deliver] = lambda deliver: deliver) -> Coordinator:
        """Return a new coordinator, as after a restart."""

        def transport(deliver: Deliver, will: Will) -> Transport:
            return cast(Transport, MemoryTransport(self.broker, "coordinator", wrap(deliver), will=will))

        run = ActiveRun(self.experiment, self.folder, resume=True)
        return Coordinator(run, TOPICS.federation, transport, self.board, lambda: self.assignments)

    def turn(self, before: Turn | None = None) -> bool:
        """Let every agent handle its messages; a new round goes to ``before`` first, then gets honest replies."""
        for player in self.players.values():
            player.listen()
        for player in self.players.values():
            message = player.round
            if message is not None and (player.name, message.round) not in self._answered and player.model():
                self._answered.add((player.name, message.round))
                if before is not None:
                    before(player, message)
                for client in FLEET.get(player.name, ()):
                    self._send_reply(player, client, message)
        return False

    def _send_reply(self, player: Player, client: int, message: RoundMessage) -> None:
        if client in self.ways:
            self.ways[client](player, message)
        else:
            player.send(player.pack(client))

    def offer(self) -> bool:
        """Let every agent handle its messages, and offer its replies again with each manifest, as real agents do."""
        for player in self.players.values():
            player.listen()
            message = player.round
            if message is not None and self._offered.get(player.name) is not message and player.model():
                self._offered[player.name] = message
                for client in FLEET[player.name]:
                    self._send_reply(player, client, message)
        return False

    def forget_answers(self) -> None:
        """Let every agent reply again to the rounds that it has replied to."""
        self._answered.clear()

    @contextmanager
    def closing(self, coordinator: Coordinator) -> Iterator[Coordinator]:
        try:
            yield coordinator
        finally:
            coordinator.run.folder.release()

    def play(self, before: Turn | None = None) -> None:
        """Play the whole run; ``before`` may misbehave."""
        self.play_with(lambda: self.turn(before))

    def play_with(self, turn: Callable[[], bool]) -> None:
        """Play the whole run; ``turn`` is called before each step of the coordinator."""
        self.arrive()
        coordinator = self.coordinator()
        with self.closing(coordinator):
            coordinator.execute(turn)
            self.rows = coordinator.run.folder.journal.results()
            assert coordinator.run.folder.finished
        for player in self.players.values():
            player.listen()

    def events(self) -> list[Event]:
        """Return what the journal holds."""
        with self.closing(self.coordinator()) as coordinator:
            return [event for _, event in coordinator.run.folder.journal.events_after(0)]

    def refusals(self) -> list[Rejected]:
        """Return the journaled refusals."""
        return [event for event in self.events() if isinstance(event, Rejected)]

    @property
    def sha256(self) -> str:
        return hashlib.sha256((self.folder / "global.safetensors").read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a coordinator that receives nothing return to the agents at once: they work in its thread."""
    monkeypatch.setattr("fedquilt_server.coordinator.coordinator.STEP_SECONDS", 0.02)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the global model of a run in which nothing goes wrong."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    stage.play()
    return stage.sha256


@pytest.fixture(scope="session")
def single_replies(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the global model of a run with exact sums in which each reply travels alone."""
    from tests.faults.test_hostile_sums import make_exact

    stage = make_exact(Stage(tmp_path_factory.mktemp("single")))
    stage.play()
    return stage.sha256


@pytest.fixture(scope="session")
def make_stage() -> Callable[..., Stage]:
    """Return the class, for tests that need several stages."""
    return Stage
