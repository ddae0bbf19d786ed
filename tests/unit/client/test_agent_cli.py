"""``fedquilt agent``: options and configuration file, its messages, and the real process beside a real broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.support.agents import presences
from tests.support.warm import ForkedProgram

from fedquilt_client import cli as module
from fedquilt_client import process
from fedquilt_client.settings import AgentSettings
from fedquilt_common import cli
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import parse_clients
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Will
from fedquilt_server.simulate.mosquitto import free_port

if TYPE_CHECKING:
    from tests.unit.client.conftest import Peer

Wait = Callable[..., Any]
IDLE_BYTES = 70_000_000
NEEDED = ("--broker", "mqtt://lab", "--id", "pi", "--clients", "0")


class Recorded:
    """Stands in for the agent, and records its arguments."""

    settings: AgentSettings
    transport: MqttTransport

    def __init__(self, settings: AgentSettings, make_transport: Callable[..., MqttTransport]) -> None:
        Recorded.settings = settings
        Recorded.transport = make_transport(lambda _: None, Will("topic", b""))

    def execute(self, should_stop: Callable[[], bool]) -> None:
        assert not should_stop()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AgentSettings]:
    """Runs the command with options; returns the agent's settings."""

    class Never:
        exit_code = 0

        def __call__(self) -> bool:
            return False

    monkeypatch.setattr(module, "Agent", Recorded)
    monkeypatch.setattr(process, "StopSignal", Never)
    monkeypatch.setattr(process, "return_freed_memory", lambda: None)

    def run(*options: str) -> AgentSettings:
        assert cli.run(["agent", *options]) == 0
        return Recorded.settings

    return run


def test_options_reach_the_agent(agent: Callable[..., AgentSettings], tmp_path: Path) -> None:
    (tmp_path / "own.csv").touch()
    found = agent(
        "--broker", "mqtt://lab:1884", "--id", "pi-7", "--clients", "0-3,7", "--federation", "garden",
        "--kind", "pi4", "--workers", "2", "--threads", "3", "--memory", "512MiB", "--state", str(tmp_path),
        "--allow-import", "mine", "--allow-import", "yours", "--once", "--power-command", "meter --watts",
        "--data", f"2={tmp_path}/own.csv", "--data", "7=mine:load", "--max-epsilon", "8", "--max-delta", "1e-5",
    )  # fmt: skip
    assert found == AgentSettings(
        "pi-7", (0, 1, 2, 3, 7), tmp_path, "garden", "pi4", 2, 3, 512 << 20, allow_import=("mine", "yours"), once=True,
        power_command="meter --watts", max_epsilon=8.0, max_delta=1e-5,
        own_data={2: f"{tmp_path}/own.csv", 7: "mine:load"},
    )  # fmt: skip
    assert (Recorded.transport._address.host, Recorded.transport._address.port) == ("lab", 1884)


def test_what_is_left_out_has_its_default(
    agent: Callable[..., AgentSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert agent(*NEEDED) == AgentSettings("pi", (0,), tmp_path / "fedquilt" / "pi")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "systemd"))
    assert agent(*NEEDED).state == tmp_path / "systemd"


CONFIG = """
broker: mqtts://from-file
id: pi-1
clients: 4-5
federation: garden
kind: pi4
workers: 2
threads: 3
memory: 1GiB
state: {state}
allow-import: [mine]
power-command: meter 'of mine'
max-epsilon: 8
max-delta: 1e-5
once: true
"""


def test_a_configuration_file_has_the_same_keys(agent: Callable[..., AgentSettings], tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(CONFIG.format(state=tmp_path / "state"))
    from_file = AgentSettings(
        "pi-1", (4, 5), tmp_path / "state", "garden", "pi4", 2, 3, 1 << 30, allow_import=("mine",), once=True,
        power_command="meter 'of mine'", max_epsilon=8.0, max_delta=1e-5,
    )  # fmt: skip
    assert agent("--config", str(path)) == from_file
    path.write_text(path.read_text().replace("allow-import", "allow_import").replace("4-5", "5"))
    assert agent("--config", str(path)).allow_import == ("mine",)
    assert agent("--config", str(path)).clients == (5,)


def test_options_win_over_the_file(agent: Callable[..., AgentSettings], tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(CONFIG.format(state=tmp_path / "state"))
    options = ("--broker", "mqtt://lab", "--id", "pi-2", "--workers", "1", "--clients", "9", "--allow-import", "other")
    found = agent("--config", str(path), *options)
    assert (found.name, found.workers, found.clients, found.allow_import) == ("pi-2", 1, (9,), ("other",))
    assert (found.threads, found.kind, found.federation) == (3, "pi4", "garden")
    assert str(Recorded.transport._address) == "mqtt://lab:1883"


def test_the_password_may_come_from_the_environment(
    agent: Callable[..., AgentSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQUILT_BROKER_PASSWORD", "of-the-test")
    agent("--broker", "mqtt://pi@lab", *NEEDED[2:])
    assert Recorded.transport._address.password == "of-the-test"  # noqa: S105
    agent("--broker", "mqtt://pi:own@lab", *NEEDED[2:])
    assert Recorded.transport._address.password == "own"  # noqa: S105


@pytest.mark.parametrize(
    ("text", "clients"), [("0-3,7", (0, 1, 2, 3, 7)), ("5", (5,)), (" 2 , 0-1 ", (0, 1, 2)), ("1,1,0-2", (0, 1, 2))]
)
def test_lists_of_clients(text: str, clients: tuple[int, ...]) -> None:
    assert parse_clients(text) == clients


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-2-3", "1.5", "1000000000", "0 1"])
def test_what_is_no_list_of_clients(text: str) -> None:
    with pytest.raises(ExperimentError, match="write them as 0-3 or 0,2,5"):
        parse_clients(text)


def test_agents_that_are_started_alike_have_slots(agent: Callable[..., AgentSettings], tmp_path: Path) -> None:
    words = (
        "--broker",
        "mqtt://lab",
        "--id",
        "weak",
        "--clients",
        "6-7,20-23",
        "--each",
        "2",
        "--state",
        str(tmp_path),
    )
    found = agent(*words)
    assert (found.name, found.clients, found.state) == ("weak-0", (6, 7), tmp_path / "slot-0")
    suffix = (tmp_path / "slot-0" / "mqtt-client").read_text()
    assert Recorded.transport._client._client_id == f"fedquilt-default-weak-0-{suffix}".encode()
    with lock_folder(tmp_path / "slot-0", name=".slot"):
        assert agent(*words).clients == (20, 21)


@pytest.mark.parametrize(
    "text",
    [
        "broker: mqtt://u:SECRET@lab\nid: a\nclients: 0\npower-command: m\npower-topic: mqtt://lab/t",
        "brokr: mqtt://u:SECRET@lab\nid: a\nclients: 0\nbroker: mqtt://lab",
        "broker: [mqtt://u:SECRET@lab]\nid: a\nclients: 0",
    ],
)
def test_a_mistake_prints_no_password(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    assert cli.run(["agent", "--config", str(file), "--state", str(tmp_path)]) == 4
    error = capsys.readouterr().err
    assert "SECRET" not in error
    assert "PosixPath" not in error


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--id", "pi"), 4, "--broker is missing"),
        (NEEDED[:4], 4, "--clients is missing"),
        ((*NEEDED, "--clients", "3-1"), 4, "0-3 or 0,2,5"),
        ((*NEEDED, "--memory", "much"), 4, "memory"),
        ((*NEEDED, "--workers", "0"), 4, "workers"),
        ((*NEEDED, "--workers", "many"), 2, "workers"),
        ((*NEEDED, "--budget", "0"), 4, "budget: must be at least 1MiB; a number alone is in bytes"),
        ((*NEEDED, "--memory", "0"), 4, "memory: must be at least 1MiB"),
        ((*NEEDED, "--max-epsilon", "0"), 4, "max-epsilon: must be above 0"),
        ((*NEEDED, "--max-epsilon", "nan"), 4, "max-epsilon: must be a finite number"),
        ((*NEEDED, "--max-epsilon", "8", "--max-delta", "1"), 4, "max-delta: must be below 1"),
        ((*NEEDED, "--max-delta", "1e-5"), 4, "--max-delta limits the delta of --max-epsilon, which is missing"),
        ((*NEEDED, "--nonsense"), 2, "--nonsense"),
        ((*NEEDED, "--broker", "http://lab"), 4, "mqtt://host"),
        ((*NEEDED, "--ca", "ca.pem"), 4, "mqtts://"),
        ((*NEEDED, "--config", "absent.yaml"), 4, "absent.yaml"),
        ((*NEEDED, "--config", "unknown.yaml"), 4, "nonsense"),
        ((*NEEDED, "--config", "list.yaml"), 4, "holds no keys"),
        ((*NEEDED, "--config", "torn.yaml"), 4, "torn.yaml"),
        ((*NEEDED, "--clients", "0-999999"), 4, "at most"),
        ((*NEEDED, "--kind", "my board"), 4, "kind"),
        ((*NEEDED, "--power-command", "meter 'of mine"), 4, "power-command: must be a program and its"),
        ((*NEEDED, "--power-topic", "plug/watts"), 4, "power-topic 'plug/watts' is not valid: write mqtt://"),
        ((*NEEDED, "--power-topic", "mqtt://lab/t", "--power-command", "m"), 4,
         "agent: --power-command and --power-topic are both given; remove one of the two\n"),
        ((*NEEDED, "--power-command", " "), 4, "must be a program and its arguments"),
        ((*NEEDED, "--data", "0"), 4, "write it as 3=/path/of/samples.csv"),
        ((*NEEDED, "--data", "5=unknown.yaml"), 4, "does not host client 5"),
        ((*NEEDED, "--data", "0=absent.csv"), 4, "there is no such file"),
        ((*NEEDED, "--data", "0=unknown.yaml", "--data", "0=list.yaml"), 4, "client 0 has samples already"),
        ((*NEEDED, "--data", "0=os:getcwd"), 4, "start this program with --allow-import os"),
        ((*NEEDED, "--id", "a/b"), 4, "id: "),
        ((*NEEDED, "--federation", "#"), 4, "federation: "),
    ],
)  # fmt: skip
def test_mistakes_are_told_without_a_traceback(
    options: tuple[str, ...], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(process, "StopSignal", lambda: lambda: True)
    for name, text in (("unknown", "nonsense: 1"), ("list", "[1]"), ("torn", "a: [")):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert cli.run(["agent", *options]) == code
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "fedquilt").exists()


def test_unusable_certificates_are_told(tmp_path: Path) -> None:
    options = ("--broker", "mqtts://lab", "--ca", "absent.pem", "--state", str(tmp_path))
    command = [sys.executable, "-m", "fedquilt_common.cli", "agent", *NEEDED[2:], *options]
    with ForkedProgram(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == 4
    assert error.startswith("fedquilt: the TLS files for mqtts://lab:8883 cannot be used")
    assert "Traceback" not in error


@contextlib.contextmanager
def agent_process(
    port: int, federation: str, folder: Path, *options: str, start: type[subprocess.Popen[str]] = ForkedProgram
) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, "-m", "fedquilt_common.cli", "agent", "--broker", f"mqtt://127.0.0.1:{port}",
        "--federation", federation, "--id", "board", "--clients", "0-3", "--state", str(folder / "state"),
        *options,
    ]  # fmt: skip
    with (folder / "agent.log").open("w") as log, start(command, stderr=log, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_idle_agent_is_small_and_leaves_in_order(
    peer: Peer, wait_for: Wait, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with agent_process(peer.port, peer.topics.federation, tmp_path, start=subprocess.Popen) as process:
        wait_for(lambda: presences(peer) and peer.messages("telemetry"), "presence and telemetry")
        agent = psutil.Process(process.pid)
        size = agent.memory_info().rss
        record_property("idle_rss_bytes", size)
        print(f"idle agent: {size / 1e6:.1f} MB")
        assert size < IDLE_BYTES
        if sys.platform == "linux":
            mapped = [entry.path for entry in agent.memory_maps()]
            assert any("pydantic" in path for path in mapped)
            assert [path for path in mapped if {"torch", "sklearn", "scipy"} & set(path.split("/"))] == []
        assert agent.children() == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    wait_for(lambda: len(presences(peer)) == 2)
    assert [presence.online for presence in presences(peer)] == [True, False]
    assert "Traceback" not in (tmp_path / "agent.log").read_text()


def test_an_agent_waits_for_its_broker(
    tmp_path: Path, wait_for: Wait, start_broker: Callable[[int], contextlib.AbstractContextManager[int]],
    meet: Callable[[int, str], contextlib.AbstractContextManager[Peer]],
) -> None:  # fmt: skip
    port = free_port()
    with agent_process(port, "late", tmp_path) as process:
        log = tmp_path / "agent.log"
        wait_for(lambda: log.read_text().count("no MQTT broker answers") == 1, "an attempt")
        assert process.poll() is None
        assert f"mqtt://127.0.0.1:{port}" in log.read_text()
        with start_broker(port), meet(port, "late") as peer:
            wait_for(lambda: presences(peer), "presence")
            assert presences(peer)[0].online
            assert "Traceback" not in log.read_text()


def test_the_state_folder_survives_a_kill(peer: Peer, wait_for: Wait, tmp_path: Path) -> None:
    for round in range(2):
        with agent_process(peer.port, peer.topics.federation, tmp_path) as process:
            wait_for(lambda seen=round: len(presences(peer)) == seen + 1)
            os.kill(process.pid, signal.SIGKILL)
    first, second = presences(peer)
    assert second.boot > first.boot
