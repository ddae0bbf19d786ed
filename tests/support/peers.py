"""A real broker for the length of a test, and small MQTT 5 clients of it."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from tests.support.warm import ForkedProgram

from fedquilt_common.wire.tls import secure_socket
from fedquilt_server.simulate.mosquitto import find_mosquitto, wait_listening

HOST = "127.0.0.1"
NOT_AUTHORIZED = 0x87
DELIVERED = (0x00, 0x10)  # to somebody; to nobody, which is no failure either


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """Run a broker during a test; pytest shows its log if the test fails."""
    child = subprocess.Popen(command)
    try:
        wait_listening(HOST, port, timeout=60)
        yield port
    finally:
        child.terminate()
        assert child.wait(timeout=60) in (0, -signal.SIGTERM)  # early on it has no handler yet


class _Client(mqtt.Client):
    """paho's client, which closes its socket if the handshake fails, for example while the broker reads its files."""

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        return secure_socket(cast("ssl.SSLContext", self._ssl_context), tcp_sock, self._host, self._connect_timeout)


class Peer:
    """A small MQTT 5 client that keeps the messages it received."""

    def __init__(
        self, port: int, name: str, *, secret: str = "", certs: Path | None = None, keep: bool = False
    ) -> None:
        self.topics: list[str] = []
        self.payloads: list[bytes] = []
        self.acks: dict[int, ReasonCode] = {}
        self.connected: ReasonCode | None = None
        self.connections = 0
        self.subscribed = 0
        self._event = threading.Condition()
        self.client = _Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        if secret:
            self.client.username_pw_set(name, secret)
        if certs:
            self.client.tls_set(str(certs / "ca.crt"), str(certs / "tls.crt"), str(certs / "tls.key"))
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = self._on_subscribe
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = 600 if keep else 0
        self.client.connect("localhost" if certs else HOST, port, clean_start=not keep, properties=session)
        self.client.loop_start()
        self.wait(lambda: self.connected is not None)

    def wait(self, done: Any, timeout: float = 60) -> None:
        with self._event:
            assert self._event.wait_for(done, timeout), f"still waiting after {timeout} seconds"

    def subscribe(self, topic: str) -> None:
        before = self.subscribed
        self.client.subscribe(topic, qos=1)
        self.wait(lambda: self.subscribed > before)

    def publish(self, topic: str, payload: bytes = b"x", *, retain: bool = False) -> int:
        """Publish a message; returns the reason code of the broker's acknowledgement."""
        number = self.client.publish(topic, payload, qos=1, retain=retain).mid
        self.wait(lambda: number in self.acks)
        code: int = self.acks[number].value
        return code

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        with self._event:
            self.connected = reason
            self.connections += not reason.is_failure
            self._event.notify_all()

    def _on_subscribe(self, _c: Any, _u: Any, _m: int, _r: Any, _p: Any) -> None:
        with self._event:
            self.subscribed += 1
            self._event.notify_all()

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        with self._event:
            self.acks[mid] = reason
            self._event.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: mqtt.MQTTMessage) -> None:
        with self._event:
            self.topics.append(message.topic)
            self.payloads.append(bytes(message.payload))
            self._event.notify_all()


@contextlib.contextmanager
def peer(*args: Any, **kwargs: Any) -> Iterator[Peer]:
    client = Peer(*args, **kwargs)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def bare_broker(folder: Path, port: int) -> Iterator[int]:
    """Run the broker of a federation's folder during a test, without the process of ``fedquilt federation broker``."""
    with running([str(find_mosquitto()), "-c", str(folder / "broker" / "mosquitto.conf")], port):
        yield port


@contextlib.contextmanager
def federation_broker(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``fedquilt federation broker`` during a test; yields its process."""
    argv = [sys.executable, "-m", "fedquilt_common.cli", "federation", "broker", "--folder", str(folder)]
    child = ForkedProgram(argv)
    try:
        wait_listening(HOST, port, timeout=60)
        yield child
    finally:
        child.terminate()
        child.wait(timeout=60)
