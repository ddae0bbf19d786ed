"""``fedquilt federation broker`` as a process: its child, its signals, and how it gets new files."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.peers import DELIVERED, NOT_AUTHORIZED, federation_broker, peer
from tests.support.runs import FEDQUILT
from tests.support.warm import ForkedProgram
from tests.unit.server.provisioning.test_federation import FED, Knock, board_context, broker_of, bundle

from fedquilt_common import cli
from fedquilt_common.doctor.broker import check_broker
from fedquilt_common.errors import BrokerFailedError, FederationError
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.tls import tls_context
from fedquilt_common.wire.topics import RESERVED
from fedquilt_server.provisioning import broker_process
from fedquilt_server.provisioning.broker_files import local_config
from fedquilt_server.provisioning.broker_process import (
    SUPERVISOR,
    RunningBroker,
    find_running_broker,
    is_listening,
    program_version,
)
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import find_mosquitto, free_port, wait_listening


@pytest.fixture
def made(tmp_path: Path) -> Federation:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    for name in ("bad", "good"):
        federation.provision(name, "pi4")
    return federation


@pytest.fixture
def supervisor(made: Federation) -> Iterator[subprocess.Popen[bytes]]:
    with federation_broker(made.folder, made.record.port) as process:
        yield process


def running(federation: Federation) -> RunningBroker:
    found = find_running_broker(federation.broker_folder)
    assert found is not None
    return found


def wait(done: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"still waiting after {seconds} seconds"
        time.sleep(0.02)


def lets_in(federation: Federation, name: str) -> bool:
    return Knock(federation.record.port, board_context(bundle(federation, name))).inside


@pytest.mark.usefixtures("supervisor")
def test_a_revoked_board_is_silenced_at_once_and_not_let_in_again(made: Federation) -> None:
    """Also on its open connection. Others connect again, and what was retained is still there."""
    port, before = made.record.port, running(made)
    with (
        peer(port, "bad", certs=bundle(made, "bad"), keep=True) as bad,
        peer(port, "good", certs=bundle(made, "good"), keep=True) as good,
        peer(port, "chief", certs=bundle(made, "coordinator"), keep=True) as coordinator,
    ):
        for board in (bad, good):
            board.subscribe(f"{FED}/round")
        assert bad.publish(f"{FED}/agents/bad/presence") in DELIVERED
        coordinator.publish(f"{FED}/end", b"kept", retain=True)
        assert "was restarted" in made.revoke("bad")
        assert running(made).pid != before.pid
        assert not lets_in(made, "bad")
        for board in (good, coordinator):
            board.wait(lambda board=board: board.connections == 2)
        coordinator.publish(f"{FED}/round")
        good.wait(lambda: good.topics)  # its session is still there
        assert (bad.topics, bad.connections) == ([], 1)
        assert good.publish(f"{FED}/agents/good/presence") in DELIVERED
        good.subscribe(f"{FED}/end")
        good.wait(lambda: b"kept" in good.payloads)
    made.provision("bad", "pi4")
    assert "was restarted" in made.reload()
    assert lets_in(made, "bad")


def test_where_a_reload_is_right_the_open_connection_of_a_revoked_board_is_silenced(
    made: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_process, "program_version", lambda _: (2, 1, 0))
    with broker_of(made) as port, peer(port, "one", certs=bundle(made, "bad")) as bad:
        assert bad.publish(f"{FED}/agents/bad/presence") in DELIVERED
        assert "reloads its files" in made.revoke("bad")
        wait(lambda: not lets_in(made, "bad"))
        assert bad.publish(f"{FED}/agents/bad/presence") == NOT_AUTHORIZED
        assert lets_in(made, "good")


@pytest.mark.usefixtures("supervisor")
def test_a_new_board_can_write_once_it_is_provisioned(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    before = running(made).pid
    folder = str(made.folder)
    assert cli.run(["provision", "one", "two", "--kind", "pi4", "--folder", folder]) == 0
    assert capsys.readouterr().out.count("was restarted") == 1
    assert running(made).pid != before
    for name in ("one", "two"):
        with peer(made.record.port, name, certs=bundle(made, name)) as board:
            assert board.publish(f"{FED}/agents/{name}/presence") in DELIVERED


def test_a_broker_that_nobody_restarts_is_an_error(made: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "program_version", lambda _: None)
    with broker_of(made) as port:
        before = running(made)
        with pytest.raises(FederationError, match=r"does not use them: .* Restart it; a reload is safe since"):
            made.revoke("bad")
        assert running(made) == before
        assert Knock(port, board_context(bundle(made, "good"))).inside
    with broker_of(made):
        assert not lets_in(made, "bad")
        assert lets_in(made, "good")


def test_a_renewal_restarts_the_broker_of_any_version(made: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    with federation_broker(made.folder, made.record.port):
        monkeypatch.setattr(broker_process, "program_version", lambda _: (2, 1, 0))
        before = running(made).pid
        assert cli.run(["federation", "renew", "--folder", str(made.folder)]) == 0
        assert running(made).pid != before
        assert lets_in(made, "coordinator")


@pytest.mark.usefixtures("supervisor")
def test_a_renewal_cuts_off_who_has_a_copy_of_the_old_files(made: Federation, tmp_path: Path) -> None:
    """Also an open connection, which cannot come back. The new files and those of the boards are accepted."""
    stolen = {user: Path(shutil.copytree(made.folder / user, tmp_path / user)) for user in RESERVED}
    port = made.record.port
    with peer(port, "thief", certs=stolen["coordinator"], keep=True) as thief:
        assert all(Knock(port, board_context(files)).inside for files in stolen.values())
        assert cli.run(["federation", "renew", "--folder", str(made.folder)]) == 0
        assert not any(Knock(port, board_context(files)).inside for files in stolen.values())
        assert all(Knock(port, board_context(made.folder / user)).inside for user in RESERVED)
        assert lets_in(made, "good")
        assert thief.connections == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both(number: int, made: Federation, supervisor: subprocess.Popen[bytes]) -> None:
    broker = psutil.Process(running(made).pid)
    assert os.getsid(broker.pid) == broker.pid  # a closed terminal does not signal it
    supervisor.send_signal(number)
    assert supervisor.wait(60) == 128 + number
    assert not broker.is_running()
    assert not (made.broker_folder / SUPERVISOR).exists()


def test_a_killed_supervisor_takes_the_broker_along(made: Federation, supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.kill()
    supervisor.wait()
    wait(lambda: find_running_broker(made.broker_folder) is None)
    with broker_of(made):  # the file of the killed one is still there
        assert running(made).supervisor is None


def test_a_broker_that_dies_ends_the_command(made: Federation, supervisor: subprocess.Popen[bytes]) -> None:
    os.kill(running(made).pid, signal.SIGKILL)
    assert supervisor.wait(60) == BrokerFailedError.exit_code


@pytest.mark.usefixtures("supervisor")
def test_only_this_folders_broker_restarts(made: Federation, tmp_path: Path) -> None:
    other = make_federation(tmp_path / "other", "lab", ["localhost"], free_port())
    before = running(made)
    assert "No broker runs" in other.reload()
    assert running(made) == before
    assert cli.run(["federation", "broker", "--folder", str(made.folder)]) == 6  # it is already running


def test_a_port_in_use_is_named(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", made.record.port)):
        assert cli.run(["federation", "broker", "--folder", str(made.folder)]) == 3
    assert f"another program listens on port {made.record.port}." in capsys.readouterr().err


@pytest.mark.usefixtures("supervisor")
def test_the_broker_is_found_by_every_spelling_of_its_folder(
    made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(made.folder)
    monkeypatch.chdir(made.folder)
    spellings = [Path("broker"), tmp_path / "x" / ".." / "f" / "broker", tmp_path / "link" / "broker"]
    assert {found.pid for folder in spellings if (found := find_running_broker(folder))} == {running(made).pid}
    assert all(find_running_broker(folder) for folder in spellings)


@pytest.mark.usefixtures("supervisor")
def test_two_commands_at_a_time_both_find_the_broker(made: Federation) -> None:
    argv = ["provision", "--kind", "pi4", "--folder", str(made.folder)]
    before = running(made).pid
    commands = [ForkedProgram([*FEDQUILT, *argv, name], stdout=subprocess.PIPE, text=True) for name in ("one", "two")]
    said = [command.communicate(timeout=60)[0] for command in commands]
    assert ["was restarted" in text for text in said] == [True, True], said
    assert running(made).pid != before


def test_our_own_programs_leave_no_error_of_tls_in_the_brokers_log(made: Federation, tmp_path: Path) -> None:
    """The doctor, a restart by `fedquilt revoke`, a simulation's wait for its broker, and any client that leaves."""
    log, port = tmp_path / "log", made.record.port
    own = bundle(made, "good")
    files = [str(own / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    address = parse_broker_url(made.record.url).with_files(*files)
    with log.open("w") as file:
        process = ForkedProgram([*FEDQUILT, "federation", "broker", "--folder", str(made.folder)], stderr=file)
    try:
        wait(lambda: is_listening(made.broker_folder, port))
        made.revoke("bad")
        wait_listening("localhost", port, 60, tls_context(address))
        assert "fail" not in {check.state for check in check_broker(address, "lab")}
    finally:
        process.terminate()
        process.wait(60)
    text = log.read_text()
    assert "fedquilt-doctor" in text
    assert [line for line in text.splitlines() if "SSL" in line or "rror" in line] == []


def test_the_broker_keeps_the_user_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment names. A user without an entry is not root, so Mosquitto keeps it anyway."""
    monkeypatch.setenv("LOGNAME", "nobody")
    own = pwd.getpwuid(os.geteuid()).pw_name
    assert f"\nuser {own}\n" in local_config(Path("/x"), 8883)
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    assert "\nuser " not in local_config(Path("/x"), 8883)


def test_the_version_of_a_program(tmp_path: Path) -> None:
    version = program_version(str(find_mosquitto()))
    assert version is not None
    assert version >= (2, 0)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o700)
    assert program_version(str(silent)) is None
    assert program_version(str(tmp_path / "missing")) is None


def test_the_broker_starts_without_a_warning(made: Federation, tmp_path: Path) -> None:
    """Neither about the ACL nor about TLS; as root, Mosquitto warns about root itself."""
    log = tmp_path / "log"
    with log.open("w") as file:
        child = subprocess.Popen([str(find_mosquitto()), "-c", str(made.broker_folder / "mosquitto.conf")], stderr=file)
        wait_listening("127.0.0.1", made.record.port, 60)
        child.terminate()
        child.wait(60)
    lines = [line for line in log.read_text().splitlines() if "Warning" in line or "Error:" in line]
    assert [line for line in lines if "should not be run as root" not in line] == []
