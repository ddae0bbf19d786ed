"""An unforeseen error in the network thread ends the program with its text; nobody waits for a thread that is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Crashed, Incoming, MqttMessage, Will

if TYPE_CHECKING:
    from tests.contract.conftest import Broker, MqttSide, Start

    Mqtt = Callable[[Broker], MqttSide]


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
