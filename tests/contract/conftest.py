"""Peers on a broker, either in memory or a real Mosquitto."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.errors import BrokerMissingError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming, MqttMessage, Transport, Will
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

HOST = "127.0.0.1"
_numbers = itertools.count()


class Inbox:
    """Everything that a transport delivered, and a method that waits for it."""

    def __init__(self, *, ack: bool) -> None:
        self.items: list[Incoming] = []
        self.acks = ack
        self._changed = threading.Condition()

    def __call__(self, incoming: Incoming) -> None:
        if self.acks and isinstance(incoming, MqttMessage):
            incoming.ack()
        with self._changed:
            self.items.append(incoming)
            self._changed.notify_all()

    def wait(self, done: Callable[[], Any], timeout: float = 60) -> None:
        with self._changed:
            assert self._changed.wait_for(done, timeout), f"still waiting after {timeout} s; got {self.items[-5:]}"


@dataclass
class Peer:
    """A transport and everything that it delivered."""

    transport: Transport
    inbox: Inbox
    name: str
    _syncs: Iterator[int] = field(default_factory=itertools.count)

    @property
    def messages(self) -> list[MqttMessage]:
        return [m for m in self.inbox.items if isinstance(m, MqttMessage) and not m.topic.startswith("sync/")]

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    @property
    def connections(self) -> list[Connected]:
        return [item for item in self.inbox.items if isinstance(item, Connected)]

    @property
    def losses(self) -> list[Disconnected]:
        return [item for item in self.inbox.items if isinstance(item, Disconnected)]

    def connect(self) -> Peer:
        self.transport.connect()
        self.inbox.wait(lambda: self.connections)
        return self

    def subscribe(self, *filters: str) -> None:
        """Subscribe, and return once the broker has sent its retained messages."""
        self.transport.subscribe(filters)
        self.settle()

    def settle(self) -> None:
        """Return once the broker has handled all earlier requests, and the peer all its answers."""
        word, topic = f"{next(self._syncs)}".encode(), f"sync/{self.name}"
        self.transport.subscribe([topic])
        assert self.transport.publish(topic, word)
        self.inbox.wait(lambda: self._synced(topic, word))
        assert self.transport.drain(60)
        if not self.inbox.acks:
            self._synced(topic, word)[0].ack()

    def _synced(self, topic: str, word: bytes) -> list[MqttMessage]:
        return [m for m in self.inbox.items if isinstance(m, MqttMessage) and (m.topic, m.payload) == (topic, word)]

    def publish(self, topic: str, payload: bytes = b"x", *, header: bytes = b"", retain: bool = False) -> None:
        """Publish, and return once the broker has acknowledged it."""
        assert self.transport.publish(topic, payload, header=header, retain=retain)
        assert self.transport.drain(60)


class Side(Protocol):
    """A broker, and how to connect a client to it."""

    def peer(self, name: str = "", *, will: Will | None = None, ack: bool = True) -> Peer: ...
    def break_off(self, peer: Peer) -> None:
        """Break the peer's connection without a DISCONNECT; it does not reconnect."""


class MemorySide:
    def __init__(self) -> None:
        self._broker = MemoryBroker()

    def peer(self, name: str = "", *, will: Will | None = None, ack: bool = True) -> Peer:
        inbox, name = Inbox(ack=ack), name or f"peer-{next(_numbers)}"
        return Peer(MemoryTransport(self._broker, name, inbox, will=will), inbox, name)

    def break_off(self, peer: Peer) -> None:
        assert isinstance(peer.transport, MemoryTransport)
        peer.transport.break_off()


class MqttSide:
    """Closes the peers that it made."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self._made: list[Peer] = []

    def peer(
        self,
        name: str = "",
        *,
        will: Will | None = None,
        ack: bool = True,
        address: BrokerAddress | None = None,
        **options: Any,
    ) -> Peer:
        inbox, name = Inbox(ack=ack), name or f"peer-{next(_numbers)}"
        transport = MqttTransport(address or self.address, name, inbox, will=will, **options)
        peer = Peer(transport, inbox, name)
        self._made.append(peer)
        return peer

    def break_off(self, peer: Peer) -> None:
        client = client_of(peer)
        client.loop_stop()  # or it would connect again by itself
        client.socket().close()

    def close(self) -> None:
        for peer in self._made:
            peer.transport.close()


def client_of(peer: Peer) -> Any:
    """Return paho's client: only through it can a test cut the connection from this end."""
    assert isinstance(peer.transport, MqttTransport)
    return peer.transport._client


class Broker:
    """A Mosquitto process that can be frozen, killed and restarted on its port."""

    def __init__(self, folder: Path, more: str = "", *, replace: tuple[str, str] = ("\n", "\n")) -> None:
        self.folder, self.port = folder, free_port()
        self._command = broker_command(folder, self.port)
        config = folder / "mosquitto.conf"
        config.write_text(config.read_text().replace(*replace) + more)
        self.address = BrokerAddress(HOST, self.port)
        self.start()

    def start(self) -> None:
        self._child = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        wait_listening(HOST, self.port, timeout=60)

    def freeze(self) -> None:
        self._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(timeout=60)


@contextlib.contextmanager
def running(folder: Path, more: str = "", *, replace: tuple[str, str] = ("\n", "\n")) -> Iterator[Broker]:
    """Start a broker with more lines in its configuration; skip the test if Mosquitto is missing."""
    try:
        broker = Broker(folder, more, replace=replace)
    except BrokerMissingError as error:
        pytest.skip(str(error))
    try:
        yield broker
    finally:
        broker.thaw()
        broker.kill()


Start = Callable[..., Broker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers for one test, with any configuration."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(running(tmp_path / f"{next(_numbers)}", *args, **options))


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def mqtt(start: Start) -> Iterator[Callable[[Broker], MqttSide]]:
    """Make sides of brokers; their peers are closed before the brokers end."""
    with contextlib.ExitStack() as stack:
        yield lambda broker: stack.enter_context(contextlib.closing(MqttSide(broker.address)))


@pytest.fixture(params=["memory", "mqtt"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """Either implementation; each test has its own topic level on the shared Mosquitto."""
    if request.param == "memory":
        yield MemorySide()
        return
    with contextlib.closing(MqttSide(request.getfixturevalue("shared_broker").address)) as made:
        yield made


@pytest.fixture
def at() -> Callable[[str], str]:
    """Topics below a level that no other test uses."""
    root = f"test-{next(_numbers)}"
    return lambda topic: f"{root}/{topic}"


@pytest.fixture
def cut() -> Callable[[Peer], None]:
    """Cuts the connection under a transport, which will make a new one."""
    return lambda peer: client_of(peer).socket().shutdown(socket.SHUT_RDWR)
