"""``fedquilt boards`` with a real broker and boards that join, report, leave and die."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
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
from tests.support.peers import bare_broker, peer
from tests.support.warm import ForkedProgram

from fedquilt_common import __version__, cli
from fedquilt_common.doctor.pi_firmware import read_throttled
from fedquilt_common.wire.messages import AgentPresence, FailedMessage, ProfileMessage, Telemetry
from fedquilt_common.wire.topics import Topics
from fedquilt_server.fleet import boards_cli, listener
from fedquilt_server.fleet.health import BoardHealth, update_board
from fedquilt_server.fleet.watch_table import describe_change
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import free_port

TOPICS = Topics("lab")
PROFILE = ProfileMessage(kind="pi4", memory=4 << 30)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation of three boards, whose broker runs."""
    federation = make_federation(tmp_path_factory.mktemp("lab") / "federation", "lab", ["localhost"], free_port())
    for name in ("kitchen", "desk", "attic"):
        federation.provision(name, "pi4")
    with bare_broker(federation.folder, federation.record.port):
        yield federation


@contextmanager
def board(federation: Federation, name: str) -> Iterator[Any]:
    """A board that has joined."""
    with peer(federation.record.port, f"client-{name}", certs=federation.board_folder(name)) as client:
        presence = AgentPresence(agent=name, online=True, boot=2, clients=[0], version="1.2", profile=PROFILE)
        client.publish(TOPICS.presence(name), presence.encode(), retain=True)
        yield client
        client.publish(TOPICS.presence(name), AgentPresence(agent=name, online=False, boot=2).encode(), retain=True)


def report(client: Any, name: str, **values: Any) -> None:
    client.publish(TOPICS.telemetry(name), Telemetry(agent=name, boot=2, **values).encode())


@contextmanager
def watching(federation: Federation, *options: str) -> Iterator[Iterator[str]]:
    """``fedquilt boards --watch``; yields its lines. Ctrl-C ends it."""
    argv = [sys.executable, "-u", "-m", "fedquilt_common.cli", "boards", "--watch", "--folder", str(federation.folder)]
    with mock.patch.object(listener, "STORED_SECONDS", 1e6):  # the fork keeps it
        child = ForkedProgram([*argv, *options], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield iter(child.stdout)
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        child.stdout.close()


def test_a_snapshot_waits_for_the_health_of_every_board(federation: Federation) -> None:
    argv = [sys.executable, "-m", "fedquilt_common.cli", "boards", "--once", "--json", "--folder"]
    turns = itertools.count()
    clock = SimpleNamespace(time=time.time, monotonic=lambda: min(2.0, 0.25 * next(turns)))  # it never gives up
    with (
        board(federation, "kitchen") as kitchen,
        mock.patch.object(boards_cli, "time", clock),  # the fork keeps it
        ForkedProgram(
            [*argv, str(federation.folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stderr is not None
        waits = "Waiting up to 10 s for the health of kitchen. An idle board reports it every 5 s\n"
        assert child.stderr.readline() == waits
        report(kitchen, "kitchen", memory_used=1 << 30, temperature=61.4, throttled=0x50000)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    rows = {row["board"]: row for row in json.loads(out)}
    assert list(rows) == ["attic", "desk", "kitchen"]
    assert (rows["desk"]["state"], rows["desk"]["last_seen"], rows["desk"]["identity"]) == ("not joined", None, "good")
    found = rows["kitchen"]
    assert (found["state"], found["version"], found["temperature"]) == ("joined", "1.2", 61.4)
    assert (found["memory_used"], found["memory_total"]) == (1 << 30, 4 << 30)
    assert found["problems"] == [
        "the voltage has been too low since the start", "it has been throttled since the start",
    ]  # fmt: skip


def test_the_first_lines_are_what_the_broker_had_stored(federation: Federation) -> None:
    with board(federation, "kitchen"), watching(federation, "--json") as lines:
        first = [json.loads(next(lines)) for _ in range(3)]
    assert [(row["board"], row["state"], row["clients"]) for row in first if row["state"] != "not joined"][-1] == (
        "kitchen", "joined", [0],
    )  # fmt: skip


def test_a_line_for_each_change(federation: Federation) -> None:
    with watching(federation, "--json") as lines:
        assert [json.loads(next(lines))["board"] for _ in range(3)] == ["attic", "desk", "kitchen"]
        with board(federation, "desk") as desk:
            joined = next(line for line in map(json.loads, lines) if line["board"] == "desk")
            assert (joined["state"], joined["reported"]) == ("joined", False)
            report(desk, "desk", temperature=40.0, training={"0": 0.5})
            told = next(line for line in map(json.loads, lines) if line["reported"])
            assert (told["training"], told["last_seen"] is not None) == ({"0": 0.5}, True)
        left = next(line for line in map(json.loads, lines) if line["state"] == "left")
        assert (left["board"], left["training"], left["version"]) == ("desk", {}, "1.2")


def test_a_pipe_gets_a_line_when_a_state_changes(federation: Federation) -> None:
    with watching(federation) as lines:
        with board(federation, "attic") as attic:
            assert next(line for line in lines if "attic" in line) == "attic: joined, fedquilt 1.2\n"
            report(attic, "attic", temperature=40.0)
            report(attic, "attic", throttled=1)
            assert next(lines) == "attic: joined, fedquilt 1.2; the voltage is too low now\n"
        assert next(lines) == "attic: left; the voltage is too low now\n"


def test_a_terminal_shows_a_live_table_with_a_real_agent(federation: Federation, tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    base = [sys.executable, "-m", "fedquilt_common.cli"]
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    shown = ""

    def wait_for(pattern: str) -> None:
        nonlocal shown
        while not re.search(pattern, shown):
            shown += os.read(screen, 65536).decode(errors="replace")

    watch = ForkedProgram(
        [*base, "boards", "--watch", "--folder", str(federation.folder)], stdout=terminal, env=environment
    )
    os.close(terminal)
    wait_for("Connected: 0 of 3 boards")
    config = str(federation.board_folder("kitchen") / "agent.yaml")
    agent = ForkedProgram([*base, "agent", "--config", config, "--state", str(tmp_path)])
    wait_for(rf"kitchen +│ joined +│ {re.escape(__version__)} .* MiB")
    agent.terminate()
    assert agent.wait(60) == 143
    wait_for(r"kitchen +│ left")
    watch.terminate()
    assert watch.wait(60) == 143
    os.close(screen)
    assert "Connected: 1 of 3 boards" in shown


def test_a_broker_that_does_not_answer_is_reported(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"mqtts://localhost:{free_port()}"
    for option in ("--watch", "--once"):
        assert cli.run(["boards", option, "--broker", url, "--folder", str(federation.folder)]) == 3
        assert f"no MQTT broker answers at {url}" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, ""])
def test_a_key_that_is_missing_is_written_again_by_renew(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = make_federation(tmp_path / "f", "lab", ["localhost"]).folder / "watch" / "tls.key"
    key.unlink()
    if content is not None:
        key.write_text(content)
    assert cli.run(["boards", "--once", "--folder", str(tmp_path / "f")]) == 8
    assert f"{key} is missing or empty: `fedquilt federation renew` writes it" in capsys.readouterr().err


def test_an_invalid_message_changes_nothing(federation: Federation) -> None:
    with watching(federation, "--json") as lines, board(federation, "kitchen") as kitchen:
        next(line for line in map(json.loads, lines) if line["state"] == "joined")
        kitchen.publish(TOPICS.telemetry("kitchen"), b"{")
        report(kitchen, "kitchen", temperature=41.0)
        assert next(line for line in map(json.loads, lines) if line["reported"])["temperature"] == 41.0


def test_a_will_and_a_failure() -> None:
    boards: dict[str, BoardHealth] = {}
    failed = FailedMessage(agent="a", run="r", client=0, round=1, exchange=0, reason="out of memory").encode()
    seen = update_board(boards, TOPICS, TOPICS.telemetry("a"), failed, retained=False, now=5.0)
    assert seen is not None
    assert (seen.last_seen, seen.reported) == (5.0, False)
    will = AgentPresence(agent="a", online=False, boot=1).encode()
    left = update_board({"a": seen}, TOPICS, TOPICS.presence("a"), will, retained=False, now=25.0)
    assert left is not None
    assert (left.state, left.last_seen) == ("left", 5.0)  # the broker published it, not the board
    assert update_board(boards, TOPICS, TOPICS.end, b"", retained=True, now=0.0) is None
    assert describe_change(None, left) == "a: left"


def test_the_firmware_of_a_raspberry_pi(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("50005\n")
    assert read_throttled(tmp_path / "flags", tmp_path) == 0x50005
    sensor = tmp_path / "hwmon1"
    sensor.mkdir()
    (sensor / "name").write_text("rpi_volt\n")
    (sensor / "in0_lcrit_alarm").write_text("1\n")
    assert read_throttled(tmp_path / "none", tmp_path) == 1
    assert read_throttled(tmp_path / "none", tmp_path / "none") is None
