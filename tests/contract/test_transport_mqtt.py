"""The transport at a real broker that is killed, freezes, refuses, or loses its sessions."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.support.password_broker import password_line

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.mqtt_limits import (
    LARGEST_PACKET,
    PACKET_OVERHEAD,
    RECEIVE_MAXIMUM,
    RETAINED_EXPIRY,
)
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming, Will
from fedquilt_server.simulate.mosquitto import free_port

if TYPE_CHECKING:
    from tests.contract.conftest import Broker, MqttSide, Peer, Start

    Mqtt = Callable[[Broker], MqttSide]
    Cut = Callable[[Peer], None]


def test_it_connects_again_by_itself_when_the_broker_was_killed(start: Start, mqtt: Mqtt) -> None:
    broker = start()
    peer = mqtt(broker).peer().connect()
    broker.kill()
    peer.inbox.wait(lambda: peer.losses)
    assert peer.losses[0].reason == f"connection to mqtt://127.0.0.1:{broker.port} lost: the broker closed it"
    assert not peer.losses[0].refused
    assert not peer.transport.publish("x", b"while away")
    broker.start()
    peer.inbox.wait(lambda: len(peer.connections) == 2)
    assert peer.connections[1] == Connected(session_present=False)
    peer.subscribe("#")
    peer.publish("x", b"again")
    peer.inbox.wait(lambda: b"again" in peer.payloads)
    assert b"while away" not in peer.payloads


def test_two_processes_with_one_identifier_wait_longer_and_longer_and_learn_why(start: Start) -> None:
    """Each connection ends that of the other, as with a copied state folder."""
    broker, deaths = start(), list[Disconnected]()

    def note(incoming: Incoming) -> None:
        if isinstance(incoming, Disconnected):
            deaths.append(incoming)

    address = BrokerAddress("127.0.0.1", broker.port)
    twins = [MqttTransport(address, "twin", note), MqttTransport(address, "twin", note)]
    try:
        for twin in twins:
            twin.connect()
        end = time.monotonic() + 60
        while not any("a copy of" in lost.advice for lost in deaths):
            assert time.monotonic() < end
            time.sleep(0.05)
        waits = [twin._client._reconnect_min_delay for twin in twins]
    finally:
        for twin in twins:
            twin.close()
    assert "It may restart" in deaths[0].advice
    assert max(waits) >= 8 * 0.2  # at least 0.2 s after the first loss, and twice as long after each brief connection


def test_closing_leaves_no_socket_open(start: Start, mqtt: Mqtt) -> None:
    broker, process = start(), psutil.Process()
    mqtt(broker).peer().connect().transport.close()  # loads what keeps files open
    before = process.num_fds()
    peer = mqtt(broker).peer().connect()
    assert process.num_fds() > before
    peer.transport.close()
    assert process.num_fds() == before


def test_what_was_under_way_when_the_connection_broke_arrives(start: Start, mqtt: Mqtt, cut: Cut) -> None:
    broker = start()
    side = mqtt(broker)
    reader, sender = side.peer().connect(), side.peer().connect()
    reader.subscribe("x")
    broker.freeze()
    for i in range(10):
        assert sender.transport.publish("x", b"%d" % i)
    cut(sender)
    sender.inbox.wait(lambda: sender.losses)
    broker.thaw()
    sender.inbox.wait(lambda: len(sender.connections) == 2)
    assert sender.transport.drain(60)
    reader.inbox.wait(lambda: len(set(reader.payloads)) == 10)


def test_unacknowledged_messages_come_again_on_a_new_connection(start: Start, mqtt: Mqtt, cut: Cut) -> None:
    side = mqtt(start())
    sender, reader = side.peer().connect(), side.peer(ack=False).connect()
    reader.subscribe("x")
    sender.publish("x", b"1")
    sender.publish("x", b"2")
    reader.inbox.wait(lambda: len(reader.messages) == 2)
    reader.messages[0].ack()
    reader.settle()
    cut(reader)
    reader.inbox.wait(lambda: len(reader.messages) == 3)
    assert reader.payloads == [b"1", b"2", b"2"]
    assert reader.connections[1] == Connected(session_present=True)


def test_an_old_acknowledgement_is_not_taken_for_another_message(start: Start, mqtt: Mqtt) -> None:
    """A broker that lost the session numbers its messages from 1 again."""
    broker = start()
    side = mqtt(broker)
    name = "reader"
    side.peer().connect().publish("x", b"old", retain=True)  # before the subscription, which it could overtake
    reader = side.peer(name, ack=False).connect()
    reader.transport.subscribe(["x"])
    reader.inbox.wait(lambda: reader.messages)
    broker.kill()
    reader.inbox.wait(lambda: reader.losses)
    broker.start()
    reader.inbox.wait(lambda: len(reader.connections) == 2)
    reader.transport.subscribe(["x"])
    assert reader.transport.publish("x", b"new")
    reader.inbox.wait(lambda: len(reader.messages) == 2)
    reader.messages[0].ack()
    reader.settle()
    reader.transport.close()
    again = side.peer(name, ack=False).connect()
    again.settle()
    assert again.payloads == [b"new"]


def publish_length(topic: str, payload: bytes, header: bytes) -> int:
    """Bytes of a PUBLISH packet at QoS 1 (MQTT 5, section 3.3)."""
    expiry = 5  # an identifier and four bytes
    properties = expiry + (3 + len(header) if header else 0)
    rest = 2 + len(topic) + 2 + 1 + properties + len(payload)
    return 1 + len([i for i in range(4) if rest >= 128**i]) + rest


@pytest.mark.parametrize("header", [b"", bytes(49)], ids=["plain", "header"])
@pytest.mark.parametrize("size", [0, 100, 200, 70_000])
def test_bytes_are_those_of_the_packets(start: Start, mqtt: Mqtt, size: int, header: bytes) -> None:
    side = mqtt(start())
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe("a/b")
    sent, heard, received = (
        sender.transport.bytes_sent,
        sender.transport.bytes_received,
        reader.transport.bytes_received,
    )
    sender.publish("a/b", bytes(size), header=header)
    reader.inbox.wait(lambda: reader.messages)
    expected = publish_length("a/b", bytes(size), header)
    assert sender.transport.bytes_sent - sent == expected
    assert reader.transport.bytes_received - received == expected
    assert 4 <= sender.transport.bytes_received - heard <= 6  # its PUBACK


def test_the_broker_counts_how_long_it_retains_a_message(start: Start, mqtt: Mqtt) -> None:
    peer = mqtt(start()).peer().connect()
    peer.publish("a/b", b"x", retain=True)
    end = time.monotonic() + 60
    while not peer.messages or peer.messages[-1].expires_in == RETAINED_EXPIRY:
        assert time.monotonic() < end
        time.sleep(0.05)
        peer.subscribe("a/b")
    left = peer.messages[-1].expires_in
    assert left is not None
    assert RETAINED_EXPIRY - 60 < left < RETAINED_EXPIRY


def test_the_brokers_largest_packet_is_respected(start: Start, mqtt: Mqtt) -> None:
    side = mqtt(start("max_packet_size 130000\n"))
    peer = side.peer()
    assert peer.transport.max_payload == LARGEST_PACKET - PACKET_OVERHEAD
    peer.connect()
    assert peer.transport.max_payload == 130_000 - PACKET_OVERHEAD
    topic = f"fedquilt/v1/{'f' * 64}/agents/{'a' * 64}/replies/999999/999999999.9/999999"
    peer.subscribe(topic)
    peer.publish(topic, bytes(peer.transport.max_payload), header=bytes(49))
    peer.inbox.wait(lambda: peer.messages)
    assert peer.losses == []


def test_nobody_at_the_port(start: Start, mqtt: Mqtt) -> None:
    port = free_port()
    peer = mqtt(start()).peer(address=BrokerAddress("127.0.0.1", port))
    peer.transport.connect()
    peer.inbox.wait(lambda: len(peer.losses) == 2)  # it goes on trying
    assert f"no MQTT broker answers at mqtt://127.0.0.1:{port}" in peer.losses[0].reason
    assert not any(loss.refused for loss in peer.losses)
    assert "firewall" in peer.losses[0].advice
    assert peer.connections == []


def test_refused_credentials(start: Start, mqtt: Mqtt) -> None:
    passwords = start().folder / "passwords"
    passwords.touch(0o600)
    passwords.write_text(password_line("ann", "right"))
    closed = start(f"password_file {passwords}\n", replace=("allow_anonymous true", "allow_anonymous false"))
    side = mqtt(closed)
    for username, password in (("ann", "wrong"), ("bob", "right"), ("", "")):
        peer = side.peer(address=replace(closed.address, username=username, password=password))
        peer.transport.connect()
        peer.inbox.wait(partial(getattr, peer, "losses"))
        assert peer.losses[0].refused
        assert f"mqtt://127.0.0.1:{closed.port} refused the connection: Not authorized" in peer.losses[0].reason
        assert not peer.transport.publish("x", b"")
        peer.inbox.wait(lambda: len(peer.losses) > 1)  # noqa: B023 - called before the next turn
        assert all(loss.refused for loss in peer.losses)  # the end of the connection is no loss of its own
        peer.transport.close()
    known = replace(closed.address, username="ann", password="right")  # noqa: S106
    side.peer(address=known).connect().settle()


def test_no_will_for_one_who_is_back_within_the_delay(start: Start, mqtt: Mqtt, cut: Cut) -> None:
    """A slow machine gets a longer delay, so that the peer is back within it."""
    side = mqtt(start())
    watcher = side.peer().connect()
    watcher.subscribe("#")
    delay = next(delay for delay in (1, 8, 60) if is_back_within(delay, side, cut))
    lost = side.peer(will=Will("lost", b"gone", delay=delay)).connect()
    side.break_off(lost)
    watcher.inbox.wait(lambda: any(m.topic == "lost" for m in watcher.messages), 90)  # broke later, so due later
    assert f"steady-{delay}" not in {m.topic for m in watcher.messages}


def is_back_within(delay: int, side: MqttSide, cut: Cut) -> bool:
    """Cut the connection of a peer with a will; returns whether the peer has another one before the will is due."""
    steady = side.peer(will=Will(f"steady-{delay}", b"gone", delay=delay)).connect()
    begin = time.monotonic()
    cut(steady)
    steady.inbox.wait(lambda: len(steady.connections) == 2)
    return time.monotonic() - begin < delay


def test_a_session_is_forgotten_after_its_expiry(start: Start, mqtt: Mqtt) -> None:
    side = mqtt(start())
    for expiry, present in ((0, False), (0, False), (600, False), (600, True)):
        peer = side.peer("same", session_expiry=expiry).connect()
        assert peer.connections == [Connected(present)]
        peer.transport.close()


@pytest.mark.parametrize("frozen", [False, True], ids=["away", "frozen"])
def test_closing_without_a_broker_is_quick(
    start: Start, mqtt: Mqtt, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedquilt_common.wire.mqtt._FAREWELL", 0.2)
    broker = start()
    peer = mqtt(broker).peer().connect()
    if frozen:
        broker.freeze()
        assert peer.transport.publish("x", bytes(15 * 1024 * 1024))  # more than the sockets take
    else:
        broker.kill()
        peer.inbox.wait(lambda: peer.losses)
    before = time.monotonic()
    peer.transport.close(last=("presence", b"bye"))
    assert time.monotonic() - before < 30


def test_a_port_that_accepts_connections_and_says_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt_common.wire.mqtt_client.ACCEPT_SECONDS", 0.2)
    events: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        transport = MqttTransport(BrokerAddress("127.0.0.1", port), "a", events.put)
        transport.connect()
        lost = events.get(timeout=20)
        transport.close()
    assert isinstance(lost, Disconnected)
    assert lost.reason == f"mqtt://127.0.0.1:{port} accepts connections, but nothing there has answered for 15 seconds"


def test_closing_does_not_wait_for_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for the name service. The attempt that was under way opens no connection when it gets an answer."""
    tries, answer, ends = threading.Event(), threading.Event(), list[socket.socket]()

    def wait_for_answer(*_: object) -> socket.socket:
        tries.set()
        assert answer.wait(60)
        near, far = socket.socketpair()
        ends.append(far)
        return near

    monkeypatch.setattr("fedquilt_common.wire.mqtt_client.open_connection", wait_for_answer)
    monkeypatch.setattr("fedquilt_common.wire.mqtt_client._END_SECONDS", 0.1)
    monkeypatch.setattr("fedquilt_common.wire.mqtt_client.socket.socket.setsockopt", lambda *_: None)
    events = list[Incoming]()
    transport = MqttTransport(BrokerAddress("127.0.0.1", 1), "a", events.append)
    transport.connect()
    assert tries.wait(60)
    transport.close()
    answer.set()
    while not ends:
        time.sleep(0.01)
    with ends[0] as far:
        assert far.recv(1) == b""
    assert events == []


def test_a_broker_for_tiny_packets_is_refused_by_name(start: Start, mqtt: Mqtt) -> None:
    peer = mqtt(start("max_packet_size 2000\n")).peer()
    peer.transport.connect()
    peer.inbox.wait(lambda: peer.losses)
    assert peer.losses[0].refused
    assert "max_packet_size" in peer.losses[0].advice


def test_a_message_beyond_the_brokers_limit_is_an_error_not_a_loop(start: Start, mqtt: Mqtt) -> None:
    peer = mqtt(start("max_packet_size 20000\n")).peer().connect()
    with pytest.raises(BrokerUnreachableError, match="max_packet_size"):
        peer.transport.publish("round", bytes(20_000))


@pytest.mark.parametrize("size", [0, 200_000])
def test_ignored_messages_are_dropped_and_acknowledged(start: Start, mqtt: Mqtt, size: int) -> None:
    side = mqtt(start())
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.transport.ignore(lambda topic: topic == "noise")
    reader.subscribe("#")
    large = bytes(300_000)
    for number in range(5 * RECEIVE_MAXIMUM):
        assert sender.transport.publish("noise", b"%d" % number + bytes(size))
        if number % 100 == 0:
            assert sender.transport.publish("x", large, header=b"h")
    sender.publish("x", b"last")
    reader.inbox.wait(lambda: b"last" in reader.payloads)
    assert reader.payloads.count(large) == 4
    assert not [message for message in reader.messages if message.topic == "noise"]
    assert reader.transport.bytes_received > 4 * len(large)
    reader.settle()
