"""An unforeseen error in the network thread ends the program with its text; nobody waits for a thread that is gone."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.mqtt_client import CountingClient
from fedquilt_common.wire.transport import Connected, Crashed, Disconnected, Incoming, MqttMessage, Will

if TYPE_CHECKING:
    from tests.contract.conftest import Broker, MqttSide, Start

    Mqtt = Callable[[Broker], MqttSide]

CONNECT, CONNACK = 0x10, b"\x20\x03\x00\x00\x00"


class Defective:
    """A receiver that fails at the first message."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.crashes: list[Crashed] = []
        self.crashed = threading.Event()

    def __call__(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            raise self.error
        if isinstance(incoming, Crashed):
            self.crashes.append(incoming)
            self.crashed.set()


@pytest.mark.parametrize("error", [OverflowError("a defect"), ValueError("a defect")], ids=["overflow", "value"])
@pytest.mark.parametrize("place", ["deliver", "ignores"])
def test_an_error_of_a_callback_is_delivered_and_the_will_published(
    start: Start, mqtt: Mqtt, place: str, error: Exception
) -> None:
    def fail(_topic: str) -> bool:
        raise error

    broker = start()
    watcher = mqtt(broker).peer().connect()
    watcher.subscribe("will")
    receiver = Defective(error)
    transport = MqttTransport(broker.address, "defective", receiver, will=Will("will", b"gone"))
    if place == "ignores":
        transport.ignore(fail)
    transport.connect()
    transport.subscribe(["x"])
    while not receiver.crashed.wait(0.05):
        watcher.publish("x")
        transport.subscribe(["x"])  # again: the first one may have come before the connection
    (crash,) = receiver.crashes
    assert repr(error) in str(crash.error)
    assert "run the same command again" in str(crash.error)
    watcher.inbox.wait(lambda: watcher.payloads == [b"gone"])
    assert not transport.publish("x", b"")
    transport.close()


def test_an_error_of_the_thread_after_the_end_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> MQTTErrorCode:
        raise AttributeError("paho has closed the socket")

    monkeypatch.setattr(Client, "loop_forever", fail)
    crashes: list[Exception] = []
    client = CountingClient(CallbackAPIVersion.VERSION2)
    client.on_crash = crashes.append
    client.loop_forever()
    client.ended = True
    client.loop_forever()
    assert [str(error) for error in crashes] == ["paho has closed the socket"]


def test_a_packet_of_a_length_that_nobody_may_send_ends_the_connection_and_the_client_connects_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as broker:
        transport = MqttTransport(parse_broker_url(f"mqtt://127.0.0.1:{broker.getsockname()[1]}"), "client", inbox.put)
        transport.connect()
        for _ in range(2):
            connection, _ = broker.accept()
            with connection:
                assert connection.recv(1000)[0] == CONNECT
                connection.sendall(CONNACK + b"\x30\xff\xff\xff\x7f")
                assert isinstance(inbox.get(timeout=60), Connected)
                lost = inbox.get(timeout=60)
            assert isinstance(lost, Disconnected)
            assert "Protocol error" in lost.reason
        transport.close()
    assert "the broker sent a packet of 268435455 bytes" in caplog.text
