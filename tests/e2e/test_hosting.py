"""Clients whose host changes, and coordinators that meet in one federation; real broker, agents and coordinators."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.live import connection, open_broker, running, wait_for
from tests.support.peers import peer

from fedquilt_client.agent import Agent
from fedquilt_client.settings import AgentSettings
from fedquilt_common.errors import FederationInUseError
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Connected, Incoming
from fedquilt_server.coordinator import rivals
from fedquilt_server.coordinator.coordinator import Coordinator
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.tools.bench import bench_experiment

TOPICS = Topics("hosting")


class Squatter:
    """A peer that claims clients and never replies."""

    def __init__(self, port: int) -> None:
        self._connected = threading.Event()
        self._transport = MqttTransport(parse_broker_url(f"127.0.0.1:{port}"), "squatter", self._take)
        self._transport.connect()
        assert self._connected.wait(60)

    def _take(self, incoming: Incoming) -> None:
        if isinstance(incoming, Connected):
            self._connected.set()

    def claim(self, clients: list[int], *, online: bool = True) -> None:
        here = AgentPresence(agent="squatter", online=online, boot=1, clients=clients)
        self._transport.publish(TOPICS.presence("squatter"), here.encode(), retain=True)
        assert self._transport.drain(60)

    def close(self) -> None:
        self._transport.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with open_broker(tmp_path_factory.mktemp("broker")) as free:
        yield free


def has_session(port: int, client_id: str) -> bool:
    """Whether the broker holds a session of this client; ends it.

    A broker reads its connections in any order. Once it has answered another client that came later, it has read that
    this one has left.
    """
    ask_session(port, "later")
    return ask_session(port, client_id)


def ask_session(port: int, client_id: str) -> bool:
    found: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
    with closing(MqttTransport(parse_broker_url(f"127.0.0.1:{port}"), client_id, found.put, session_expiry=0)) as probe:
        probe.connect()
        answer = found.get(timeout=60)
    assert isinstance(answer, Connected)
    return answer.session_present


def agent(port: int, folder: Path, name: str, clients: tuple[int, ...]) -> AbstractContextManager[threading.Thread]:
    settings = AgentSettings(name, clients, federation=TOPICS.federation, state=folder / name)
    return running(Agent(settings, connection(port, name)).execute)


@dataclass
class Lab:
    """A coordinator of two clients and two rounds, without training, in a thread of its own."""

    port: int
    folder: Path
    name: str = "run"
    status: StatusStore = field(default_factory=StatusStore)

    def execute(self, should_stop: Callable[[], bool]) -> None:
        experiment = bench_experiment(1, 2, 0.01, 2).model_copy(update={"name": self.name})
        run = ActiveRun(experiment, self.folder / self.name, resume=True)
        try:
            make_transport = connection(self.port, f"coordinator-{self.name}")
            Coordinator(run, TOPICS.federation, make_transport, self.status).execute(should_stop)
        finally:
            run.folder.release()

    def await_claim(self, squatter: Squatter, client: int) -> None:
        """Let a peer claim a client, live: a claim that the broker retains would give way to a live agent."""
        wait_for(lambda: self.status.current.broker_connected)
        squatter.claim([client])
        wait_for(lambda: self.status.current.boards)
        squatter.claim([client])

    @property
    def refusals(self) -> list[str]:
        return [shown.reason for shown in self.status.current.rejections if "does not host" in shown.reason]


@pytest.fixture
def lab(port: int, tmp_path: Path) -> Lab:
    return Lab(port, tmp_path)


def test_a_reply_counts_once_another_agent_gives_up_its_claim(port: int, tmp_path: Path, lab: Lab) -> None:
    with closing(Squatter(port)) as squatter, running(lab.execute) as work:
        lab.await_claim(squatter, 0)
        with agent(port, tmp_path, "board", (0, 1)):
            wait_for(lambda: lab.refusals and lab.status.current.replies)
            squatter.claim([])
            work.join(60)
            assert lab.status.current.phase == "finished"
    assert lab.refusals[-1] == "agent board does not host client 0, but agent squatter does"


def test_boards_that_swap_their_clients_finish_the_run(port: int, tmp_path: Path, lab: Lab) -> None:
    """Client 1's old board is off, but its claim lives for a while: nobody has published its will yet."""
    with closing(Squatter(port)) as squatter, running(lab.execute) as work:
        lab.await_claim(squatter, 1)
        with agent(port, tmp_path, "one", (0,)):
            wait_for(lambda: lab.status.current.replies)
        with agent(port, tmp_path, "one", (1,)), agent(port, tmp_path, "two", (0,)):
            wait_for(lambda: lab.refusals)
            squatter.claim([], online=False)
            work.join(60)
            assert lab.status.current.phase == "finished"


@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_second_coordinator_leaves_each_time_it_starts_and_harms_nothing(
    port: int, tmp_path: Path, lab: Lab, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run sorts before or after the first one's. It publishes nothing that an agent would follow."""
    monkeypatch.setattr(rivals, "ANSWER_SECONDS", 60.0)  # the first one may be slow to answer
    second = Lab(port, tmp_path, name)
    with peer(port, "witness") as witness, running(lab.execute) as work:
        witness.subscribe(TOPICS.coordinator)
        witness.wait(lambda: any(b'"run":"run-' in found and b'"started":1' in found for found in witness.payloads))
        for kind in ("run", "round", "end"):
            witness.subscribe(f"fedquilt/v1/hosting/{kind}")
        for _ in range(3):
            with pytest.raises(FederationInUseError, match="works in the federation hosting, which carries one run at"):
                second.execute(lambda: False)
            assert not has_session(port, f"coordinator-{name}")
        with agent(port, tmp_path, "board", (0, 1)):
            work.join(60)
            assert lab.status.current.phase == "finished"
        witness.wait(lambda: any(b"all rounds are done" in found for found in witness.payloads))
    foreign = [
        topic for topic, found in zip(witness.topics, witness.payloads, strict=True) if f'"{name}-'.encode() in found
    ]
    assert set(foreign) == {TOPICS.coordinator}
