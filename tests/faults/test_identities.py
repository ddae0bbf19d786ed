"""Nobody takes over the connection of an agent or a coordinator at a real broker, and no session is left behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.peers import Peer, peer, running
from tests.support.runs import FEDQUILT, journal_events
from tests.support.warm import ForkedProgram

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.client_id import SUFFIX_FILE, agent_client_id, coordinator_client_id
from fedquilt_common.wire.messages import AgentPresence, CoordinatorPresence
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Connected, Incoming
from fedquilt_server.simulate.mosquitto import broker_command, free_port
from fedquilt_server.tools.bench import bench_experiment

pytestmark = pytest.mark.quick

FEDERATION = "lab"
TOPICS = Topics(FEDERATION)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    number = free_port()
    with running(broker_command(tmp_path / "broker", number), number):
        yield number


@pytest.fixture
def watcher(port: int) -> Iterator[Peer]:
    """A client that records what coordinator and agents publish."""
    with peer(port, "watcher") as watcher:
        watcher.subscribe(TOPICS.coordinator)
        watcher.subscribe(TOPICS.presence("board"))
        yield watcher


@contextlib.contextmanager
def process(kind: str, port: int, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run one ``fedquilt`` command; its output goes to a file named after it."""
    command = [*FEDQUILT, kind, *options, "--broker", f"mqtt://127.0.0.1:{port}", "--federation", FEDERATION]
    with (
        (folder / f"{kind}.log").open("w") as log,
        ForkedProgram(command, stdout=log, stderr=log, text=True) as made,
    ):
        try:
            yield made
        finally:
            made.kill()


def coordinator(port: int, folder: Path, *more: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    (folder / "experiment.yaml").write_text(dump_experiment(bench_experiment(1, 1, 0.01, 1)))
    options = ("--out", str(folder / "run"), "--resume", "--no-page", *more)
    return process("coordinator", port, folder, str(folder / "experiment.yaml"), *options)


def agent(port: int, folder: Path, client: int) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Run an agent that exits after the run; without client 0, the run waits."""
    options = ("--id", "board", "--clients", f"{client}", "--state", str(folder / "state"), "--once")
    return process("agent", port, folder, *options)


def client_ids(folder: Path) -> list[str]:
    """Return the identifiers of the coordinator and the agent that worked in ``folder``."""
    run, state = ((folder / name / SUFFIX_FILE).read_text() for name in ("run", "state"))
    return [coordinator_client_id(FEDERATION, run), agent_client_id(FEDERATION, "board", state)]


def has_session(port: int, client_id: str) -> bool:
    """Whether the broker keeps a session of this client; ends it."""
    found: list[Incoming] = []
    transport = MqttTransport(parse_broker_url(f"127.0.0.1:{port}"), client_id, found.append)
    transport.connect()
    await_(lambda: found)
    transport.close(end_session=True)
    assert isinstance(found[0], Connected)
    return found[0].session_present


def await_(done: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"still waiting after {seconds} seconds"
        time.sleep(0.02)


def states(watcher: Peer, topic: str) -> list[bytes]:
    return [payload for name, payload in zip(watcher.topics, watcher.payloads, strict=True) if name == topic]


def test_a_stranger_with_their_names_throws_nobody_off(port: int, watcher: Peer, tmp_path: Path) -> None:
    """The identifiers of earlier versions; the coordinator's will has no delay, so a loss would be seen at once."""
    presence, own = TOPICS.presence("board"), TOPICS.coordinator
    with (
        coordinator(port, tmp_path),
        agent(port, tmp_path, 5),
    ):
        watcher.wait(lambda: states(watcher, presence) and len(states(watcher, own)) == 2)  # it asks, then it works
        for name in ("coordinator", "board"):
            with peer(port, f"fedquilt-{FEDERATION}-{name}", keep=True) as stranger:
                stranger.publish("elsewhere")
        again = CoordinatorPresence(online=True, epoch=7).encode()
        watcher.subscribe(TOPICS.telemetry("board"))
        watcher.publish(own, again)
        watcher.wait(lambda: states(watcher, TOPICS.telemetry("board")))  # the agent is still connected
        assert len(states(watcher, presence)) == 1
        assert [b'"online":true' in payload for payload in states(watcher, own)] == [True] * 3
    assert "lost" not in (tmp_path / "agent.log").read_text()


def test_a_board_that_left_its_presence_behind_keeps_no_client(port: int, tmp_path: Path) -> None:
    """It claimed the client first, and disconnected without a will, so the broker retains that it is online."""
    with peer(port, "stale") as stale:
        here = AgentPresence(agent="a-stale-board", online=True, boot=1, clients=[0]).encode()
        stale.client.publish(TOPICS.presence("a-stale-board"), here, qos=1, retain=True).wait_for_publish(60)
    with coordinator(port, tmp_path) as server, agent(port, tmp_path, 0):
        assert server.wait(60) == 0
    assert [event["agent"] for event in journal_events(tmp_path / "run", "Replied")] == ["board"]


def test_a_board_hosts_only_what_the_inventory_assigns_to_it(port: int, tmp_path: Path) -> None:
    """The client belongs to another board, until the inventory changes while the coordinator runs."""
    inventory, log = tmp_path / "inventory.yml", tmp_path / "coordinator.log"
    inventory.write_text("all: {children: {agents: {hosts: {other: {fedquilt_clients: 0}}}}}")
    with coordinator(port, tmp_path, "--inventory", str(inventory)) as server, agent(port, tmp_path, 0):
        await_(lambda: rejections(tmp_path))
        write_atomically(inventory, inventory.read_text().replace("other", "board"))
        assert server.wait(60) == 0
    assert f"The inventory {inventory} assigns 1 client to 1 board" in log.read_text()
    assert rejections(tmp_path) == ["the inventory assigns client 0 to other"]


def rejections(folder: Path) -> list[str]:
    """Return the reasons in the journal; none while there is no journal."""
    return [event["reason"] for event in journal_events(folder / "run", "Rejected")]


def test_a_finished_run_leaves_no_session_and_shows_no_secret(port: int, tmp_path: Path) -> None:
    with coordinator(port, tmp_path) as server, agent(port, tmp_path, 0) as board:
        assert server.wait(60) == 0
        assert board.wait(60) == 0
    ids = client_ids(tmp_path)
    assert [has_session(port, name) for name in ids] == [False, False]
    shown = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != SUFFIX_FILE]
    assert {"coordinator.log", "agent.log", "journal.sqlite", "boot"} <= {path.name for path in shown}
    leaks = [path for path in shown for name in ids if name[-32:].encode() in path.read_bytes()]
    assert leaks == []


def test_an_interrupted_run_keeps_its_sessions(port: int, watcher: Peer, tmp_path: Path) -> None:
    with (
        coordinator(port, tmp_path) as server,
        agent(port, tmp_path, 5) as board,
    ):
        watcher.wait(lambda: states(watcher, TOPICS.presence("board")) and states(watcher, TOPICS.coordinator))
        for who in (server, board):
            who.send_signal(signal.SIGTERM)
            assert who.wait(60) == 128 + signal.SIGTERM
    assert [has_session(port, name) for name in client_ids(tmp_path)] == [True, True]
