"""The broker of a run on a cluster: one listener with TLS and a password, tried with a real Mosquitto."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.tls import tls_context
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming
from fedquilt_server.ray_cluster.hosts import make_listener
from fedquilt_server.simulate.child_process import ChildSpec
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening
from fedquilt_server.simulate.supervisor import Supervisor

HOST = "127.0.0.1"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[BrokerAddress]:
    listener, port = make_listener(HOST), free_port(HOST)
    listener.write(tmp_path)
    argv = broker_command(tmp_path, port, listener.config(tmp_path, port))
    with Supervisor(tmp_path / "pids.json") as children:
        children.start(ChildSpec("broker", "broker", tuple(argv), tmp_path / "broker.log"))
        found = listener.address(port, tmp_path)
        wait_listening(HOST, port, 60, tls_context(found))
        yield found


def first_event(address: BrokerAddress) -> Incoming:
    events: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
    transport = MqttTransport(address, "tester", events.put)
    transport.connect()
    try:
        return events.get(timeout=60)
    finally:
        transport.close()


def test_it_accepts_the_password_of_the_run_and_no_other(address: BrokerAddress, tmp_path: Path) -> None:
    assert isinstance(first_event(address), Connected)
    for other in (replace(address, password="guessed"), replace(address, username="", password="")):  # noqa: S106
        assert isinstance(first_event(other), Disconnected)
    stranger = tmp_path / "stranger.crt"
    stranger.write_text(make_listener(HOST).ca)
    assert isinstance(first_event(replace(address, ca=str(stranger))), Disconnected)
    assert {path.stat().st_mode & 0o77 for path in map(tmp_path.joinpath, ("users", "broker.key"))} == {0}
