"""The broker's configuration files and functions, tested with a real Mosquitto."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.peers import DELIVERED, HOST, NOT_AUTHORIZED, peer, running

from fedquilt_common.errors import BrokerMissingError, BrokerUnreachableError
from fedquilt_server.provisioning.acl import make_acl
from fedquilt_server.simulate import mosquitto
from fedquilt_server.simulate.mosquitto import (
    broker_command,
    broker_config,
    find_mosquitto,
    free_port,
    wait_listening,
)

BROKER = Path(__file__).parents[4] / "broker"
FED = "fedquilt/v1/lab"
SECRET = "of-the-test"  # noqa: S105


def test_the_environment_chooses_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_MOSQUITTO", sys.executable)
    assert find_mosquitto() == Path(sys.executable)


def test_a_free_port_is_none_that_the_system_gives_to_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mosquitto, "_CONNECTION_PORTS", tmp_path / "range")
    (tmp_path / "range").write_text("32768\t60999\n")
    assert all(20_000 <= free_port() < 32_768 for _ in range(20))
    (tmp_path / "range").write_text("1024\t65535\n")
    assert free_port() > 0


def test_a_wrong_choice_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDQUILT_MOSQUITTO", str(tmp_path / "nothing"))
    with pytest.raises(BrokerMissingError, match=r"FEDQUILT_MOSQUITTO is .*nothing"):
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
    monkeypatch.setattr("fedquilt_server.simulate.mosquitto.SBIN_FOLDERS", ())
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
from fedquilt_server.simulate.mosquitto import wait_listening
subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM))
wait_listening("127.0.0.1", int(sys.argv[1]), 60)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which signals a child when its parent dies")
def test_the_broker_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Also for root: the kernel would not signal a broker that changed its user."""
    port = free_port()
    command = [sys.executable, "-c", KILLED_PARENT, str(port), *broker_command(tmp_path, port)]
    parent = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert parent.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return
        time.sleep(0.05)
    pytest.fail(f"the broker on port {port} outlived its parent")


def test_the_compose_configuration_starts(tmp_path: Path) -> None:
    port = free_port()
    config = _adapt("mosquitto.conf", tmp_path, {"listener 1883": f"listener {port}"})
    with running([str(find_mosquitto()), "-c", str(config)], port), peer(port, "anyone") as anyone:
        assert anyone.publish(f"{FED}/round") in DELIVERED


def _adapt(name: str, folder: Path, changes: dict[str, str]) -> Path:
    """Copy a shipped configuration, with the test's ports and folders in it."""
    text = (BROKER / name).read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    # If root starts Mosquitto, it becomes another user, who cannot read the test's folder.
    (folder / name).write_text(text + "user root\n")
    return folder / name


@pytest.fixture
def acl_broker(tmp_path: Path) -> Iterator[int]:
    """The shipped ACL on a broker with a password, instead of a certificate, for each user."""
    passwd = shutil.which("mosquitto_passwd", path=str(find_mosquitto().parent)) or shutil.which("mosquitto_passwd")
    if passwd is None:
        pytest.skip("mosquitto_passwd is not installed: sudo apt-get install mosquitto")
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    for name in ("coordinator", "watch", "pi-1", "pi-2"):
        subprocess.run([passwd, "-b", str(passwords), name, SECRET], check=True)
    acl = tmp_path / "acl"
    acl.write_text(make_acl("lab", ["pi-1", "pi-2"]))
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
