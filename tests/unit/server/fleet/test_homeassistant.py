"""``fedquilt homeassistant`` with a real broker: what Home Assistant would read, and what is cleared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from tests.support.peers import DELIVERED, NOT_AUTHORIZED, Peer, bare_broker, peer, running
from tests.support.warm import ForkedProgram

from fedquilt_common import cli
from fedquilt_common.wire.messages import AgentPresence, ProfileMessage, Telemetry
from fedquilt_common.wire.topics import Topics
from fedquilt_server.fleet import homeassistant_cli, listener
from fedquilt_server.fleet.health import BoardHealth
from fedquilt_server.fleet.homeassistant import allowed_topics, board_messages, board_topics
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import find_mosquitto, free_port

TOPICS = Topics("lab")
BRIDGE = "homeassistant/fedquilt/lab/availability"
KITCHEN = board_topics("lab", "kitchen")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation of two boards, whose broker runs."""
    folder = tmp_path_factory.mktemp("lab") / "federation"
    federation = make_federation(folder, "lab", ["localhost"], free_port(), reload="true")
    for name in ("kitchen", "desk"):
        federation.provision(name, "pi4")
    with bare_broker(federation.folder, federation.record.port):
        yield federation


@contextmanager
def joined(federation: Federation, name: str) -> Iterator[Peer]:
    """A board that has joined and retains its presence."""
    with peer(federation.record.port, f"client-{name}", certs=federation.board_folder(name)) as board:
        presence = AgentPresence(
            agent=name, online=True, boot=2, clients=[0], version="1.2", profile=ProfileMessage(kind="pi4")
        )
        board.publish(TOPICS.presence(name), presence.encode(), retain=True)
        yield board
        board.publish(TOPICS.presence(name), AgentPresence(agent=name, online=False, boot=2).encode(), retain=True)


@contextmanager
def bridging(federation: Federation, *options: str, **environment: str) -> Iterator[Iterator[str]]:
    """``fedquilt homeassistant``, ended with Ctrl-C; yields the lines of its log."""
    argv = [sys.executable, "-m", "fedquilt_common.cli", "homeassistant", "--folder", str(federation.folder), *options]
    with (  # the fork keeps both
        mock.patch.object(homeassistant_cli, "RECORD_SECONDS", 0.3),
        mock.patch.object(listener, "STORED_SECONDS", 1e6),
    ):
        child = ForkedProgram(argv, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        yield iter(child.stderr)
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        child.stderr.close()


@contextmanager
def home(port: int, **options: Any) -> Iterator[Peer]:
    """Stands for Home Assistant."""
    with peer(port, "home", **options) as client:
        client.subscribe("homeassistant/#")
        yield client


def last(home: Peer, topic: str) -> bytes | None:
    """Return the last message that arrived on a topic; None without one."""
    found = [payload for name, payload in zip(list(home.topics), list(home.payloads), strict=False) if name == topic]
    return found[-1] if found else None


def report(board: Peer, name: str, **values: Any) -> None:
    board.publish(TOPICS.telemetry(name), Telemetry(agent=name, boot=2, **values).encode())


def test_a_board_becomes_a_device_and_disappears_when_it_is_revoked(federation: Federation) -> None:
    with (
        home(federation.record.port, certs=federation.folder / "homeassistant") as assistant,
        bridging(federation) as log,
        joined(federation, "kitchen") as kitchen,
    ):
        assistant.wait(lambda: last(assistant, KITCHEN["availability"]) == b"online")
        assert last(assistant, BRIDGE) == b"online"
        assert next(log).endswith(f"showing 2 boards (desk, kitchen) of lab at {federation.record.url}\n")
        assert last(assistant, KITCHEN["config"]) is None  # it is not known yet which sensors it has
        report(
            kitchen, "kitchen", temperature=51.5, memory_used=3 << 20, joules=1800.0, throttled=4, training={"0": 0.25}
        )
        assistant.wait(lambda: last(assistant, KITCHEN["state"]))
        state = json.loads(last(assistant, KITCHEN["state"]) or b"")
        assert state == {"temperature": 51.5, "energy": 0.5, "memory": 3, "training": 25, "problem": "ON"}
        config = json.loads(last(assistant, KITCHEN["config"]) or b"")
        assert set(config["components"]) == set(state)  # no sensor for the power that it does not report
        assert config["device"] == {
            "identifiers": ["fedquilt_lab_kitchen"], "name": "kitchen", "manufacturer": "fedquilt",
            "model": "Raspberry Pi 4 Model B", "sw_version": "1.2",
        }  # fmt: skip
        assert [each["topic"] for each in config["availability"]] == [BRIDGE, KITCHEN["availability"]]
        assert config["components"]["energy"]["state_class"] == "total_increasing"  # it restarts with the agent
        assert config["components"]["temperature"]["value_template"] == "{{ value_json.temperature }}"
        report(kitchen, "kitchen", temperature=52.0, memory_used=3 << 20, throttled=0x40000)
        assistant.wait(lambda: b'"problem":"OFF"' in (last(assistant, KITCHEN["state"]) or b""))
        federation.revoke("kitchen")
        assistant.wait(lambda: {last(assistant, topic) for topic in KITCHEN.values()} == {b""})
        assert next(log).endswith("removed kitchen\n")
        assert last(assistant, board_topics("lab", "desk")["availability"]) == b"offline"
        federation.provision("kitchen", "pi4")
        assert next(log).endswith("added kitchen\n")


def test_a_broker_that_does_not_report_its_version(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Mosquitto does, after everything that it had stored."""
    monkeypatch.setattr(listener, "VERSION_TOPIC", "fed/lab/never")
    monkeypatch.setattr(listener, "STORED_SECONDS", 0.2)
    with listener.FleetListener(federation) as boards:
        end = time.monotonic() + 60
        while not boards.complete:
            assert time.monotonic() < end
            boards.take(0.05, time.time())


def test_a_board_that_was_revoked_while_the_command_did_not_run_disappears(
    federation: Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homeassistant_cli, "CLEAR_SECONDS", 1.0)
    old = board_topics("lab", "attic")
    other = board_topics("lab_2", "attic")["config"]
    with home(federation.record.port, certs=federation.folder / "homeassistant") as assistant:
        for topic in (*old.values(), other):
            assistant.publish(topic, b"{}", retain=True)
        with bridging(federation) as log:
            assistant.wait(lambda: {last(assistant, topic) for topic in old.values()} == {b""})
            assert next(line for line in log if "removed" in line).endswith("removed attic\n")
        assistant.wait(lambda: last(assistant, BRIDGE) == b"offline")
        assert last(assistant, other) == b"{}"  # another federation's

        def clock() -> float:
            """Stand still until the broker has cleared all boards, so that it may take its time to report them."""
            shown = {topic for topic in list(assistant.topics) if topic not in (other, BRIDGE)}
            return time.monotonic() if all(last(assistant, topic) == b"" for topic in shown) else 0.0

        monkeypatch.setattr(homeassistant_cli, "time", SimpleNamespace(time=time.time, monotonic=clock))
        assert cli.run(["homeassistant", "--remove", "--folder", str(federation.folder)]) == 0
        assert capsys.readouterr().out == "Removed 2 boards (desk, kitchen).\n"
        assistant.wait(lambda: last(assistant, BRIDGE) == b"")
        assert last(assistant, board_topics("lab", "desk")["availability"]) == b""
        assistant.publish(other, b"", retain=True)
        assert cli.run(["homeassistant", "--remove", "--folder", str(federation.folder)]) == 0
        assert capsys.readouterr().out == "There was no board to remove.\n"


def test_another_broker_with_a_password(federation: Federation, tmp_path: Path) -> None:
    port = free_port()
    secret = "home and away"  # noqa: S105
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "home", secret], check=True)
    passwords.chmod(0o644)
    (tmp_path / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\npassword_file {passwords}\nuser root\n")
    target = f"mqtt://home@127.0.0.1:{port}"
    with (
        running([str(find_mosquitto()), "-c", str(tmp_path / "mosquitto.conf")], port),
        peer(port, "home", secret=secret) as assistant,
    ):
        assistant.subscribe("homeassistant/#")
        with (
            joined(federation, "desk"),
            bridging(federation, "--to", target, FEDQUILT_HOMEASSISTANT_PASSWORD=secret),
        ):
            topic = board_topics("lab", "desk")["availability"]
            assistant.wait(lambda: last(assistant, topic) == b"online")
        wrong = ["homeassistant", "--to", target, "--folder", str(federation.folder)]
        assert cli.run(wrong) == 3


def test_the_identity_has_no_rights_in_the_federation(federation: Federation) -> None:
    with (
        peer(federation.record.port, "one", certs=federation.folder / "homeassistant") as assistant,
        peer(federation.record.port, "two", certs=federation.board_folder("desk")) as board,
    ):
        assistant.subscribe("#")
        assert board.publish(TOPICS.telemetry("desk")) in DELIVERED
        for topic in (TOPICS.round, TOPICS.telemetry("desk"), TOPICS.inbox("desk")):
            assert assistant.publish(topic) == NOT_AUTHORIZED
        assert board.publish("homeassistant/device/x/config") == NOT_AUTHORIZED
        assert assistant.publish("homeassistant/end") in DELIVERED
        assistant.wait(lambda: "homeassistant/end" in assistant.topics)
        assert not [topic for topic in assistant.topics if topic.startswith("fedquilt/")]


def test_a_federation_without_the_identity_is_told_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    (federation.folder / "homeassistant" / "tls.crt").unlink()
    assert cli.run(["homeassistant", "--folder", str(federation.folder)]) == 8
    assert "tls.crt is missing or empty: `fedquilt federation renew`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--folder", "nowhere"], 8, "nowhere holds no federation: create one with `fedquilt federation init`"),
        (["--to", "http://x"], 4, "broker address 'http://x' is not valid"),
        (["--to", "mqtt://x", "--ca", "ca.crt"], 4, "need an mqtts:// address"),
        (["--to", "mqtts://x", "--ca", "nothere"], 4, "nothere: No such file or directory"),
    ],
)
def test_options_that_cannot_be_used(
    options: list[str], code: int, words: str, federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["homeassistant", "--folder", str(federation.folder), *options]) == code
    assert words in capsys.readouterr().err


def test_names_that_home_assistant_does_not_allow() -> None:
    board = BoardHealth("pi.Kitchen_1", state="joined", reported=True, temperature=1.0)
    messages = board_messages("my.lab", board)
    assert set(messages) == allowed_topics("my.lab", ["pi.Kitchen_1"])
    assert "homeassistant/device/fedquilt_my_lab/pi_Kitchen_1/config" in messages
    (config,) = (json.loads(text) for topic, text in messages.items() if topic.endswith("/config"))
    assert config["components"]["temperature"]["unique_id"] == "fedquilt_my_lab_pi_Kitchen_1_temperature"
