"""A coordinator process on a real Mosquitto: killed with SIGKILL while replies arrive, and restarted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.warm import ForkedProgram

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.transport import Connected, Deliver, Transport
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

HOST = "127.0.0.1"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    number = free_port()
    with ended(subprocess.Popen(broker_command(tmp_path / "broker", number))):
        wait_listening(HOST, number, 60)
        yield number


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def start(stage: Stage, port: int) -> subprocess.Popen[bytes]:
    file = stage.scratch.parent / "experiment.yaml"
    file.write_text(dump_experiment(stage.experiment))
    argv = [
        sys.executable, "-m", "fedquilt_common.cli", "coordinator", str(file), "--out", str(stage.folder), "--resume",
        "--no-page", "--broker", f"mqtt://{HOST}:{port}", "--federation", "lab",
    ]  # fmt: skip
    with (stage.scratch.parent / "coordinator.log").open("ab") as log:
        return ForkedProgram(argv, stdout=log, stderr=log)


def connect(player: Player, port: int, clients: tuple[int, ...]) -> None:
    """Connect the player to the real broker; it publishes its presence once it is connected."""
    connected: list[object] = []

    def deliver(incoming: object) -> None:
        if isinstance(incoming, Connected):
            connected.append(incoming)
        player._take(incoming)

    def make(deliver: Deliver) -> Transport:
        return MqttTransport(BrokerAddress(HOST, port), f"agent-{player.name}", deliver)

    player.transport = make(deliver)
    player.transport.connect()
    wait(lambda: bool(connected))
    player.appear(clients)


def wait(done: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"still waiting after {seconds} seconds"
        time.sleep(0.005)


def test_killed_in_every_round_and_the_model_is_the_same(stage: Stage, undisturbed: str, port: int) -> None:
    process = start(stage, port)
    kills: list[int] = []

    def kill_once(player: Player, message: RoundMessage) -> None:
        """Kill after half of client 1's reply, while client 0's reply is in transit or has just counted."""
        nonlocal process
        parcel = player.pack(1)
        player.sent[parcel.blob.digest] = parcel
        player.send_chunks(parcel, parcel.headers[:2])
        if message.round not in kills:
            kills.append(message.round)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            process = start(stage, port)
        player.send_chunks(parcel, parcel.headers[2:])

    stage.ways[1] = kill_once
    players = stage.players
    try:
        for name, clients in (("pi", (0, 1)), ("jetson", (2,))):
            connect(players[name], port, clients)
        wait(lambda: stage.turn() or process.poll() is not None, 60)
        assert process.returncode == 0, (stage.scratch.parent / "coordinator.log").read_text()
        wait(lambda: stage.turn() or all(player.ended for player in players.values()))
    finally:
        process.kill()
        process.wait()
        for player in players.values():
            player.transport.close()
    assert kills == [1, 2]
    assert stage.sha256 == undisturbed
    result = json.loads((stage.folder / "result.json").read_text())
    assert [(row["clients"], row["late"], row["rejected"]) for row in result["rounds"]] == [(3, 0, 0), (3, 0, 0)]
    accepted = [(r.client, r.round) for player in players.values() for r in player.receipts if r.outcome == "accepted"]
    assert len(accepted) == len(set(accepted))
