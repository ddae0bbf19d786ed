"""The broker's files and functions, tried on a real Mosquitto."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fedquilt_common.errors import BrokerMissingError, BrokerUnreachableError
from fedquilt_server.broker import (
    broker_command,
    broker_config,
    find_mosquitto,
    free_port,
    wait_listening,
)

BROKER = Path(__file__).parents[3] / "broker"
HOST = "127.0.0.1"
NOT_AUTHORIZED = 0x87
DELIVERED = (0x00, 0x10)  # to somebody; to nobody, which is no failure either
FED = "fedquilt/v1/lab"
SECRET = "of-the-test"  # noqa: S105


def test_the_environment_chooses_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_MOSQUITTO", sys.executable)
    assert find_mosquitto() == Path(sys.executable)


def test_a_wrong_choice_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDQUILT_MOSQUITTO", str(tmp_path / "nothing"))
    with pytest.raises(BrokerMissingError, match=r"FEDQUILT_MOSQUITTO names .*nothing"):
        find_mosquitto()


def test_the_environments_own_program_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, other = _program(tmp_path / "venv"), _program(tmp_path / "other")
    monkeypatch.delenv("FEDQUILT_MOSQUITTO", raising=False)
    monkeypatch.setattr(sys, "executable", str(own.parent / "python"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_mosquitto() == own
    own.unlink()
    assert find_mosquitto() == other


def test_no_program_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDQUILT_MOSQUITTO", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("fedquilt_server.broker.SBIN_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerMissingError, match="make setup"):
        find_mosquitto()


def _program(folder: Path) -> Path:
    folder.mkdir()
    program = folder / "mosquitto"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_the_config_listens_on_loopback_only() -> None:
    listeners = [line for line in broker_config(4711).splitlines() if line.startswith("listener")]
    assert listeners == ["listener 4711 127.0.0.1"]


def test_nobody_listening_is_an_error() -> None:
    with pytest.raises(BrokerUnreachableError, match=r"0\.1 seconds"):
        wait_listening(HOST, free_port(), timeout=0.1)


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """A broker for the length of a test; what it logged is shown when the test fails."""
    child = subprocess.Popen(command)
    try:
        wait_listening(HOST, port, timeout=10)
        yield port
    finally:
        child.terminate()
        assert child.wait(timeout=10) in (0, -signal.SIGTERM)  # early on it has no handler yet


class Peer:
    """A small MQTT 5 client that remembers what it was sent."""

    def __init__(
        self, port: int, name: str, *, secret: str = "", certs: Path | None = None, keep: bool = False
    ) -> None:
        self.topics: list[str] = []
        self.payloads: list[bytes] = []
        self.acks: dict[int, ReasonCode] = {}
        self.connected: ReasonCode | None = None
        self.subscribed = 0
        self._event = threading.Condition()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        if secret:
            self.client.username_pw_set(name, secret)
        if certs:
            self.client.tls_set(str(certs / "ca.crt"), str(certs / "board.crt"), str(certs / "board.key"))
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = self._on_subscribe
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = 600 if keep else 0
        self.client.connect("localhost" if certs else HOST, port, clean_start=not keep, properties=session)
        self.client.loop_start()
        self.wait(lambda: self.connected is not None)

    def wait(self, done: Any, timeout: float = 20) -> None:
        with self._event:
            assert self._event.wait_for(done, timeout), f"still waiting after {timeout} seconds"

    def subscribe(self, topic: str) -> None:
        before = self.subscribed
        self.client.subscribe(topic, qos=1)
        self.wait(lambda: self.subscribed > before)

    def publish(self, topic: str, payload: bytes = b"x") -> int:
        """The reason code of the broker's acknowledgement."""
        number = self.client.publish(topic, payload, qos=1).mid
        self.wait(lambda: number in self.acks)
        code: int = self.acks[number].value
        return code

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        with self._event:
            self.connected = reason
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


def test_2000_messages_wait_for_a_session_that_is_away(tmp_path: Path) -> None:
    port, total = free_port(), 2000
    with running(broker_command(tmp_path, port), port):
        with peer(port, "board", keep=True) as board:
            board.subscribe("t/#")
        with peer(port, "coordinator") as coordinator:
            numbers = [coordinator.client.publish("t/x", b"%d" % i, qos=1).mid for i in range(total)]
            coordinator.wait(lambda: all(n in coordinator.acks for n in numbers))
        with peer(port, "board", keep=True) as board:
            board.wait(lambda: len(board.payloads) >= total)
            assert board.payloads == [b"%d" % i for i in range(total)]


KILLED_PARENT = """
import ctypes, os, signal, subprocess, sys
from fedquilt_server.broker import wait_listening
subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM))
wait_listening("127.0.0.1", int(sys.argv[1]), 10)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a child when its parent dies")
def test_the_broker_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Also for root: a broker that changed its user would not be told."""
    port = free_port()
    command = [sys.executable, "-c", KILLED_PARENT, str(port), *broker_command(tmp_path, port)]
    parent = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert parent.returncode == -signal.SIGKILL
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return
        time.sleep(0.05)
    pytest.fail(f"the broker on port {port} outlived its parent")


def test_the_compose_configuration_starts(tmp_path: Path) -> None:
    port = free_port()
    config = _adapted("mosquitto.conf", tmp_path, {"listener 1883": f"listener {port}"})
    with running([str(find_mosquitto()), "-c", str(config)], port), peer(port, "anyone") as anyone:
        assert anyone.publish(f"{FED}/round") in DELIVERED


def _adapted(name: str, folder: Path, changes: dict[str, str]) -> Path:
    """A copy of a shipped configuration, with the test's ports and places in it."""
    text = (BROKER / name).read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    # Started by root, Mosquitto becomes another user, who cannot look into the test's folder.
    (folder / name).write_text(text + "user root\n")
    return folder / name


@pytest.fixture
def acl_broker(tmp_path: Path) -> Iterator[int]:
    """The shipped acl on a broker with a password for each user, for want of certificates."""
    passwd = shutil.which("mosquitto_passwd", path=str(find_mosquitto().parent)) or shutil.which("mosquitto_passwd")
    if passwd is None:
        pytest.skip("mosquitto_passwd is not installed (Debian has it in the package mosquitto)")
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    for name in ("coordinator", "watch", "pi-1", "pi-2"):
        subprocess.run([passwd, "-b", str(passwords), name, SECRET], check=True)
    acl = tmp_path / "acl"
    shutil.copyfile(BROKER / "acl", acl)
    acl.chmod(0o600)
    port = free_port()
    access = f"allow_anonymous false\npassword_file {passwords}\nacl_file {acl}\n"
    config = tmp_path / "acl.conf"
    config.write_text(broker_config(port).replace("allow_anonymous true\n", access))
    with running([str(find_mosquitto()), "-c", str(config)], port):
        yield port


REPLY = "replies/3/1.0/0"
REFUSED = [
    f"{FED}/agents/pi-2/presence",
    f"{FED}/agents/pi-2/{REPLY}",
    f"{FED}/agents/pi-2/inbox",
    f"{FED}/agents/pi-1/inbox",
    f"{FED}/agents/pi-1/anything",
    f"{FED}/coordinator",
    f"{FED}/run",
    f"{FED}/round",
    f"{FED}/slices/0/0",
    f"{FED}/soft-labels/0/0",
    f"{FED}/end",
    "elsewhere",
]


def test_an_agent_writes_only_its_own_topics(acl_broker: int) -> None:
    with peer(acl_broker, "pi-1", secret=SECRET) as agent:
        assert [t for t in REFUSED if agent.publish(t) != NOT_AUTHORIZED] == []
        for allowed in ("presence", REPLY, "telemetry"):
            assert agent.publish(f"{FED}/agents/pi-1/{allowed}") != NOT_AUTHORIZED


def test_an_agent_reads_only_what_is_meant_for_it(acl_broker: int) -> None:
    shared = ["coordinator", "run", "round", "slices/0/0", "soft-labels/0/0", "end", "agents/pi-1/inbox"]
    private = ["agents/pi-2/inbox", "agents/pi-2/presence", f"agents/pi-2/{REPLY}"]
    with (
        peer(acl_broker, "pi-1", secret=SECRET) as agent,
        peer(acl_broker, "coordinator", secret=SECRET) as coordinator,
    ):
        agent.subscribe("#")
        for topic in [*private, *shared]:
            assert coordinator.publish(f"{FED}/{topic}") != NOT_AUTHORIZED
        agent.wait(lambda: len(agent.topics) >= len(shared))
        assert agent.topics == [f"{FED}/{topic}" for topic in shared]


def test_watch_reads_all_and_writes_nothing(acl_broker: int) -> None:
    with (
        peer(acl_broker, "watch", secret=SECRET) as watch,
        peer(acl_broker, "pi-2", secret=SECRET) as agent,
    ):
        watch.subscribe(f"{FED}/#")
        agent.publish(f"{FED}/agents/pi-2/{REPLY}")
        watch.wait(lambda: watch.topics)
        refused = [*REFUSED, f"{FED}/agents/watch/presence"]
        assert [t for t in refused if watch.publish(t) != NOT_AUTHORIZED] == []


def test_a_stranger_is_turned_away(acl_broker: int) -> None:
    with peer(acl_broker, "pi-1", secret=SECRET.upper()) as stranger:
        assert stranger.connected is not None
        assert stranger.connected.is_failure


def test_the_shipped_tls_configuration(tmp_path: Path) -> None:
    """A board's certificate is its user name on 8883; without one nobody gets in, on either port."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed, so no certificates can be made")
    _certificates(tmp_path)
    (tmp_path / "passwords").touch(0o600)
    shutil.copyfile(BROKER / "acl", tmp_path / "acl")
    (tmp_path / "acl").chmod(0o600)
    tls, local = free_port(), free_port()
    changes = {
        "8883\n": f"{tls} 127.0.0.1\n",
        "listener 1883": f"listener {local}",
        "/etc/mosquitto/fedquilt": str(tmp_path),
    }
    config = _adapted("mosquitto-tls.conf", tmp_path, changes)
    with running([str(find_mosquitto()), "-c", str(config)], tls):
        with peer(local, "pi-1") as nobody:
            assert nobody.connected is not None
            assert nobody.connected.is_failure
        with peer(tls, "any-client-id", certs=tmp_path) as board:
            assert board.publish(f"{FED}/agents/pi-1/presence") in DELIVERED
            assert board.publish(f"{FED}/agents/pi-2/presence") == NOT_AUTHORIZED


def _certificates(folder: Path) -> None:
    """ca, server and the board pi-1."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=lab-ca", "-days", "2")
    for name, common_name in (("server", "localhost"), ("board", "pi-1")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={common_name}")
        signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", "names", *signer)
