"""The transport at a real broker holds a limited number of messages, at a sender and at a slow receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.mqtt_limits import HELD_BYTES, HELD_MESSAGES, QUEUED_MESSAGES, RECEIVE_MAXIMUM
from fedquilt_common.wire.transport import Connected, Incoming, MqttMessage
from fedquilt_common.wire.window import QUEUED_BYTES

if TYPE_CHECKING:
    from tests.contract.conftest import Broker, MqttSide, Start

    Mqtt = Callable[[Broker], MqttSide]


def test_no_more_than_the_window_comes_unacknowledged(start: Start, mqtt: Mqtt) -> None:
    """A receiver that is busy with the disk gets no more messages than the receive maximum."""
    side = mqtt(start())
    sender, reader = side.peer().connect(), side.peer(ack=False).connect()
    reader.transport.subscribe(["x"])
    assert reader.transport.publish("x", b"first")
    reader.inbox.wait(lambda: reader.messages)
    reader.messages[0].ack()
    reader.publish(
        "y"
    )  # the broker has the acknowledgement; Mosquitto 2.0.11 would send all that it holds for a late one
    for i in range(RECEIVE_MAXIMUM + 5):
        sender.publish("x", b"%d" % i)
    reader.inbox.wait(lambda: len(reader.messages) == 1 + RECEIVE_MAXIMUM)
    side.peer().connect().settle()
    assert len(reader.messages) == 1 + RECEIVE_MAXIMUM
    for message in reader.messages[1:]:
        message.ack()
    reader.inbox.wait(lambda: len(reader.messages) == 1 + RECEIVE_MAXIMUM + 5)


@pytest.mark.parametrize(
    ("size", "fitting"),
    [(256 * 1024, QUEUED_BYTES // (256 * 1024) - 1), (10, QUEUED_MESSAGES)],
    ids=["bytes", "number"],
)
def test_publish_waits_while_too_much_is_under_way(start: Start, mqtt: Mqtt, size: int, fitting: int) -> None:
    broker = start()
    peer = mqtt(broker).peer().connect()
    broker.freeze()
    published = 0

    def publish() -> None:
        nonlocal published
        for _ in range(fitting + 4):
            assert peer.transport.publish("x", bytes(size))
            published += 1

    sender = threading.Thread(target=publish)
    sender.start()
    end = time.monotonic() + 60
    while published < fitting and time.monotonic() < end:
        time.sleep(0.01)
    assert not peer.transport.drain(0.3)  # as long as it would take to publish too much
    assert (published, sender.is_alive()) == (fitting, True)
    broker.thaw()
    sender.join(60)
    assert published == fitting + 4
    assert peer.transport.drain(60)


def test_a_sender_that_waits_is_told_when_the_broker_dies(start: Start, mqtt: Mqtt) -> None:
    broker = start()
    peer = mqtt(broker).peer().connect()
    broker.freeze()
    results: list[bool] = []

    def publish() -> None:
        while not results or results[-1]:
            results.append(peer.transport.publish("x", bytes(QUEUED_BYTES // 4)))

    sender = threading.Thread(target=publish)
    sender.start()
    broker.kill()
    sender.join(60)
    assert results[-1] is False
    assert not peer.transport.drain(0)


class Busy:
    """A receiver that acknowledges only when the test lets it."""

    def __init__(self, port: int) -> None:
        self.taken: list[MqttMessage] = []
        self.acknowledged = 0
        self._connected = threading.Event()
        self.transport = MqttTransport(BrokerAddress("127.0.0.1", port), "busy", self._deliver)
        self.transport.connect()
        assert self._connected.wait(60)

    def _deliver(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            self.taken.append(incoming)
        elif isinstance(incoming, Connected):
            self._connected.set()

    def wait_for_one(self) -> None:
        end = time.monotonic() + 60
        while not self.taken:
            assert time.monotonic() < end
            time.sleep(0.01)

    @property
    def held(self) -> int:
        return len(self.taken) - self.acknowledged

    def acknowledge(self) -> None:
        self.taken[self.acknowledged].ack()
        self.acknowledged += 1


@pytest.mark.parametrize(("qos", "size", "most"), [(0, 10, HELD_MESSAGES), (1, 256 * 1024, HELD_BYTES // (256 * 1024))])
def test_a_receiver_that_is_slow_is_not_buried(start: Start, mqtt: Mqtt, qos: int, size: int, most: int) -> None:
    """This holds even if the broker ignores the receive maximum, and for QoS 0, which has none."""
    broker = start()
    busy = Busy(broker.port)
    busy.transport.subscribe(["flood"])
    sender = mqtt(broker).peer().connect()
    assert isinstance(sender.transport, MqttTransport)
    sender.transport._client.publish("flood", b"first", qos=1, retain=True)  # it may overtake the subscription
    busy.wait_for_one()
    busy.acknowledge()
    total = 3 * most
    for _ in range(total):
        sender.transport._client.publish("flood", bytes(size), qos=qos)
    highest = 0
    end = time.monotonic() + 60
    while busy.acknowledged <= total and time.monotonic() < end:
        time.sleep(0.002)
        highest = max(highest, busy.held)
        if busy.held:
            busy.acknowledge()
    busy.transport.close()
    assert busy.acknowledged == 1 + total
    assert highest <= most


def test_a_receiver_that_has_stopped_reading_can_still_send(start: Start) -> None:
    """The acknowledgements that it waits for arrive after the messages that it does not read."""
    broker = start()
    busy = Busy(broker.port)
    busy.transport.subscribe(["flood"])
    for _ in range(2 * HELD_MESSAGES):
        assert busy.transport.publish("flood", bytes(100))
    sent = [busy.transport.publish("elsewhere", bytes(256 * 1024)) for _ in range(3 * QUEUED_BYTES // (256 * 1024))]
    assert all(sent)
    assert busy.transport.drain(60)
    busy.transport.close()


def test_what_is_freed_makes_room_before_it_is_acknowledged(start: Start, mqtt: Mqtt) -> None:
    """A reply that waits for the disk must not keep the next ones from arriving; their number is bounded still."""
    broker = start()
    busy = Busy(broker.port)
    busy.transport.subscribe(["flood"])
    sender = mqtt(broker).peer().connect()
    size = 256 * 1024
    for _ in range(HELD_MESSAGES + 5):
        assert sender.transport.publish("flood", bytes(size))
    end, freed = time.monotonic() + 60, 0
    while busy.held < HELD_MESSAGES and time.monotonic() < end:
        for message in busy.taken[freed:]:
            message.free()
            freed += 1
        time.sleep(0.002)
    time.sleep(0.1)  # what came too much would arrive now
    assert busy.held == HELD_MESSAGES > HELD_BYTES // size
    for _ in range(HELD_MESSAGES):
        busy.acknowledge()
    busy.transport.close()
