"""Brokers that come late, refuse the password for a while, or get another certificate: what ends, and what goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest
from tests.support import warm
from tests.support.password_broker import USER, PasswordBroker
from tests.support.peers import bare_broker
from tests.support.runs import FEDQUILT, PATIENCE, finished_rounds
from tests.support.warm import ForkedProgram

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.wire.broker_url import BROKER_PASSWORD
from fedquilt_server.provisioning.authority import issue_certificate, load_identity
from fedquilt_server.provisioning.cli import coordinator_options
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.tools.bench import bench_experiment

REFUSED = "refused the connection: Not authorized"


def wait(done: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@contextlib.contextmanager
def running(folder: Path, commands: Mapping[str, Sequence[str]]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run commands by name; ``folder`` gets a file with what each prints."""
    environment = {**os.environ, BROKER_PASSWORD: "right"}
    with contextlib.ExitStack() as stack:
        processes = dict[str, subprocess.Popen[bytes]]()
        for name, words in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = ForkedProgram([*FEDQUILT, *words], env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes[name] = process
        yield processes


def endless(folder: Path) -> Path:
    """Write an experiment without training for one agent that does not end by itself."""
    experiment = folder / "experiment.yaml"
    experiment.write_text(dump_experiment(bench_experiment(1, 1, 0.01, 1_000_000)))
    return experiment


def await_more_rounds(folder: Path) -> None:
    before = finished_rounds(folder)
    wait(lambda: finished_rounds(folder) > before + 2, "no more rounds are finished")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PasswordBroker]:
    made = PasswordBroker(tmp_path / "broker")
    yield made
    made.stop()


def test_a_late_broker_is_waited_for_and_a_password_may_be_wrong_for_a_while(
    tmp_path: Path, broker: PasswordBroker
) -> None:
    port, where = free_port(), ("--broker", broker.url)
    run = ("coordinator", str(endless(tmp_path)), "--out", str(tmp_path / "run"), "--port", str(port), *where)
    agent = ("agent", "--id", "pi", "--clients", "0", "--state", str(tmp_path / "pi"), *where)
    logs = {name: tmp_path / f"{name}.log" for name in ("run", "pi")}

    def count(words: str) -> list[int]:
        return [log.read_text().count(words) for log in logs.values()]

    def message() -> str:
        shown: str = httpx.get(f"http://127.0.0.1:{port}/api/status", timeout=PATIENCE).json()["message"]
        return shown

    with running(tmp_path, {"run": run, "pi": agent}) as processes:
        wait(lambda: count("no MQTT broker answers at") == [1, 1], "both wait for the broker")
        broker.start("right")
        await_more_rounds(tmp_path)
        broker.start("other")
        wait(lambda: count(REFUSED) == [1, 1], "both report the refusal")
        wait(lambda: REFUSED in message(), "the page shows the refusal")  # it is logged first
        assert f"Correct the user {USER!r} in the broker's address, or the password" in message()
        time.sleep(3)  # several attempts
        assert count(REFUSED) == [1, 1]
        broker.start("right")
        await_more_rounds(tmp_path)
        broker.start("other")
        wait(lambda: count(REFUSED) == [2, 2], "a new refusal is reported again")
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE) for process in processes.values()] == [143, 143]


def test_a_simulation_that_the_broker_refuses_ends_without_a_restart(tmp_path: Path, broker: PasswordBroker) -> None:
    broker.start("right")
    words = ("simulate", str(endless(tmp_path)), "--broker", broker.url, "--out", "run")
    done = warm.fedquilt(*words, where=tmp_path, environment={BROKER_PASSWORD: "wr0ng"}, patience=PATIENCE)
    assert done.returncode == 3
    assert f"fedquilt: mqtt://127.0.0.1:{broker.port} {REFUSED}. Correct the user" in done.stderr
    assert "was restarted" not in done.stderr
    assert "wr0ng" not in done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", 3)


@pytest.mark.quick
@pytest.mark.parametrize("certificate", ["unknown", "other protocol"])
def test_a_coordinator_with_a_long_patience_does_not_wait_for_a_refusal(
    tmp_path: Path, broker: PasswordBroker, certificate: str
) -> None:
    experiment, federation = endless(tmp_path), make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    with bare_broker(federation.folder, federation.record.port):
        url = federation.record.url if certificate == "unknown" else federation.record.url.replace("mqtts", "mqtt")
        options = ("--broker", url, "--broker-wait", "100000", "--no-page", "--out", "run")
        done = warm.fedquilt("coordinator", str(experiment), *options, where=tmp_path, patience=PATIENCE)
    assert done.returncode == 3
    reason = "certificate verify failed" if certificate == "unknown" else f"requires TLS. Write {federation.record.url}"
    assert reason in done.stderr


def renew_certificate(federation: Federation) -> None:
    """Replace the certificate of the broker by one of the same authority."""
    folder, broker = federation.folder / "authority", federation.broker_folder
    authority = load_identity((folder / "ca.crt").read_text(), (folder / "ca.key").read_text(), "authority")
    until = datetime.now(timezone.utc) + timedelta(days=9)
    identity = issue_certificate(authority, "localhost", until, ["localhost"])
    assert identity.certificate_pem != (broker / "broker.crt").read_text()
    (broker / "broker.crt").write_text(identity.certificate_pem)
    (broker / "broker.key").write_text(identity.key_pem)


@pytest.mark.quick
def test_a_run_goes_on_with_a_new_certificate_of_the_broker(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    federation.provision("pi", "pi4")
    config = str(federation.board_folder("pi") / "agent.yaml")
    options = ("--out", str(tmp_path / "run"), "--no-page", *coordinator_options(federation))
    run = ("coordinator", str(endless(tmp_path)), *options)
    commands = {"run": run, "pi": ("agent", "--config", config, "--state", str(tmp_path / "pi"))}
    with running(tmp_path, commands):
        with bare_broker(federation.folder, federation.record.port):
            await_more_rounds(tmp_path)
        renew_certificate(federation)
        with bare_broker(federation.folder, federation.record.port):
            await_more_rounds(tmp_path)
    for name in commands:
        assert "certificate" not in (tmp_path / f"{name}.log").read_text()
