"""The doctor at a real broker, with and without TLS and ACL, and its command."""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.peers import running

from fedquilt_common import cli
from fedquilt_common.doctor import clock
from fedquilt_common.doctor.broker import (
    _check_acl,
    _check_issuer,
    _check_own_certificate,
    _check_own_topics,
    _check_rights,
    _check_version,
    check_broker,
)
from fedquilt_common.doctor.check import Check
from fedquilt_common.doctor.clock import coordinator_time
from fedquilt_common.wire import other_protocol
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.certificate import Certificate, broker_user, read_certificate
from fedquilt_common.wire.messages import CoordinatorPresence
from fedquilt_common.wire.mosquitto_version import can_reload, name_version
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.mqtt_limits import RETAINED_EXPIRY
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Connected, Incoming, MqttMessage
from fedquilt_server.provisioning.authority import issue_certificate, load_identity
from fedquilt_server.provisioning.broker_process import program_version
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import broker_command, find_mosquitto, free_port


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    federation = make_federation(tmp_path_factory.mktemp("lab") / "federation", "lab", ["localhost"], free_port())
    for name in ("pi", "gone"):
        federation.provision(name, "pi4")
    federation.revoke("gone")
    return federation


@contextlib.contextmanager
def broker_of(federation: Federation, more: str = "", name: str = "mosquitto.conf") -> Iterator[None]:
    config = federation.broker_folder / f"test-{name}"
    config.write_text((federation.broker_folder / name).read_text() + more)
    with running([str(find_mosquitto()), "-c", str(config)], federation.record.port):
        yield


def address_of(federation: Federation, folder: Path, **changes: str) -> BrokerAddress:
    files = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    found = {kind: changes.get(kind, str(folder / name)) for kind, name in files.items()}
    return parse_broker_url(f"mqtts://localhost:{federation.record.port}").with_files(**found)


def states(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.state for check in checks}


WELL = {"broker": "ok", "own certificate": "ok", "broker's certificate": "ok", "MQTT": "ok", "largest packet": "ok"}


def test_a_board_at_its_broker(made: Federation, caplog: pytest.LogCaptureFixture) -> None:
    with broker_of(made):
        found = check_broker(address_of(made, made.board_folder("pi")), "lab")
        assert states(found) == {**WELL, "ACL": "ok", "federation": "ok"}
        assert not any(check.advice for check in found)
        found = check_broker(address_of(made, made.board_folder("pi")), "loft")
        assert states(found) == {**WELL, "ACL": "ok", "federation": "fail"}
        assert "pi may not write in the federation 'loft'" in found[-1].said
        assert "name is wrong" in found[-1].advice
    assert "refused" not in caplog.text  # the refusals are what the doctor expects


@pytest.mark.parametrize(
    ("user", "finding", "failure"),
    [
        ("coordinator", "coordinator may write in the federation 'lab'", "may not write in the federation 'labx'"),
        ("watch", "watch is of the federation 'lab'", "is of the federation 'lab', not of 'labx'"),
        ("homeassistant", "homeassistant is of the federation 'lab'", "is of the federation 'lab', not of 'labx'"),
    ],
)
def test_a_user_of_the_workstation_at_its_broker(user: str, finding: str, failure: str, made: Federation) -> None:
    """The broker shows nobody what `watch` may read; the authority of its certificate names the federation."""
    address = address_of(made, made.folder / user)
    with broker_of(made):
        found = {check.name: check for check in check_broker(address, "lab")}
        assert found["federation"] == Check("federation", "ok", finding)
        assert found["ACL"].state == "ok"
        wrong = {check.name: check for check in check_broker(address, "labx")}["federation"]
    assert (wrong.state, failure in wrong.said, "--federation" in wrong.advice) == ("fail", True, True)


def test_a_user_that_may_not_write_without_a_federation_in_its_certificate() -> None:
    assert Certificate("watch", "another authority", 0.0).federation == ""
    (found,) = _check_issuer("", "watch", "lab")
    assert (found.state, "unknown" in found.said) == ("warn", True)


def test_a_board_that_the_brokers_acl_does_not_know_yet(made: Federation) -> None:
    with broker_of(made):
        made.provision("late", "pi4")
        found = check_broker(address_of(made, made.board_folder("late")), "lab")
    assert states(found) == {**WELL, "ACL": "ok", "federation": "fail"}
    assert "late may not write in the federation 'lab'" in found[-1].said
    assert "the broker's ACL does not name this board" in found[-1].advice


@pytest.mark.parametrize(
    ("behind", "state"), [(0, "ok"), (7200, "warn")]
)  # fmt: skip
def test_the_clock_of_a_board_is_compared_with_the_coordinators(
    made: Federation, behind: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is ``behind`` seconds behind; the coordinator publishes, and the broker retains it."""
    monkeypatch.setattr(clock, "WARN_SKEW", 600.0)  # the message may be long on its way
    events = queue.SimpleQueue[Incoming]()
    with broker_of(made):
        coordinator = MqttTransport(address_of(made, made.folder / "coordinator"), "coordinator", events.put)
        coordinator.connect()
        assert isinstance(events.get(timeout=60), Connected)
        here = CoordinatorPresence(online=True, epoch=1, run="r", started=1, time=int(time.time()) - behind)
        coordinator.publish(Topics("lab").coordinator, here.encode(), retain=True)
        assert coordinator.drain(60)
        for user in ("boards/pi", "watch"):
            found = {check.name: check for check in check_broker(address_of(made, made.folder / user), "lab")}
            assert found["coordinator's clock"].state == state
        coordinator.close((Topics("lab").coordinator, b""))
    assert ("2:0" in found["coordinator's clock"].said) == (state == "warn")


@pytest.mark.parametrize(
    ("presence", "left", "expected"),
    [
        (CoordinatorPresence(online=True, epoch=1, started=1, time=1000), RETAINED_EXPIRY - 50, 1050.0),
        (CoordinatorPresence(online=True, epoch=1, started=1), RETAINED_EXPIRY, None),
        (CoordinatorPresence(online=True, epoch=1, time=1000), 600, None),
        (CoordinatorPresence(online=False, epoch=1), None, None),
        (None, RETAINED_EXPIRY, None),
    ],
    ids=["retained for 50 s", "of an earlier version", "one that asks", "a will", "no presence"],
)
def test_the_coordinators_time(presence: CoordinatorPresence | None, left: int | None, expected: float | None) -> None:
    payload = b"?" if presence is None else presence.encode()
    message = MqttMessage("coordinator", payload, b"", True, lambda: None, expires_in=left)
    assert coordinator_time(message) == expected


@pytest.mark.parametrize("user", ["coordinator", "watch"])
def test_the_brokers_version(user: str, made: Federation) -> None:
    """Boards must not read it; the workstation's users may."""
    with broker_of(made):
        found = {check.name: check for check in check_broker(address_of(made, made.folder / user), "lab")}
    version = program_version(str(find_mosquitto()))
    check = found["broker's version"]
    assert name_version(version) in check.said
    assert check.state == ("ok" if can_reload(version) else "warn")
    assert ("systemctl restart mosquitto" in check.advice) != can_reload(version)


@pytest.mark.parametrize(
    ("payload", "state"),
    [(b"mosquitto version 2.0.21", "warn"), (b"mosquitto version 2.1.0", "ok"), (b"VerneMQ", None)],
)
def test_what_is_made_of_the_version(payload: bytes, state: str | None) -> None:
    found = _check_version(MqttMessage("$SYS/broker/version", payload, b"", True, lambda: None))
    assert [check.state for check in found] == ([state] if state else [])


def test_a_broker_without_an_acl(made: Federation) -> None:
    config = made.broker_folder / "mosquitto.conf"
    (made.broker_folder / "open.conf").write_text(
        "".join(f"{line}\n" for line in config.read_text().splitlines() if not line.startswith("acl_file"))
    )
    with broker_of(made, name="open.conf"):
        found = check_broker(address_of(made, made.board_folder("pi")), "lab")
    assert states(found[:-1]) == {**WELL, "ACL": "fail", "federation": "ok"}
    assert "federation init" in found[-3].advice
    assert found[-1].name == "broker's version"


def test_an_open_broker_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_protocol, "ANSWER_SECONDS", 60.0)
    port = free_port()
    with running(broker_command(tmp_path, port), port):
        found = check_broker(parse_broker_url(f"127.0.0.1:{port}"), "lab")
        assert states(found) == {"broker": "ok", "MQTT": "ok", "largest packet": "ok", "ACL": "warn"}
        wrong = check_broker(parse_broker_url(f"mqtts://127.0.0.1:{port}"), "lab")
        assert (wrong[-1].name, wrong[-1].state) == ("TLS", "fail")
        assert "8883" in wrong[-1].advice
        assert f"mqtt://127.0.0.1:{port}, without --ca" in wrong[-1].advice


def check_with(setting: str, folder: Path) -> dict[str, Check]:
    """Return the checks, by name, of a Mosquitto without access control that has a further setting."""
    port = free_port()
    command = broker_command(folder, port)
    with (folder / "mosquitto.conf").open("a") as config:
        config.write(f"{setting}\n")
    with running(command, port):
        return {check.name: check for check in check_broker(parse_broker_url(f"127.0.0.1:{port}"), "lab")}


def test_a_broker_that_takes_small_packets_only(tmp_path: Path) -> None:
    found = check_with("max_packet_size 131072", tmp_path)
    assert found["largest packet"].state == "warn"
    assert "payloads of up to 127 KiB" in found["largest packet"].said
    assert "Raise the broker's max_packet_size" in found["largest packet"].advice


def test_a_limit_that_the_broker_does_not_announce_is_found(tmp_path: Path) -> None:
    found = check_with("message_size_limit 5000", tmp_path)
    assert (found["largest packet"].state, found["ACL"].state) == ("ok", "warn")
    assert found["largest message"].state == "fail"
    assert found["largest message"].said == "the broker ends the connection at a message of 256 KiB"
    assert "message_size_limit" in found["largest message"].advice


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("max_packet_size 2000", "Raise the broker's max_packet_size"),
        ("retain_available false", "retain_available"),
        ("max_qos 0", "max_qos"),
    ],
)
def test_a_broker_with_a_limit_that_no_run_can_do_with(setting: str, advice: str, tmp_path: Path) -> None:
    *_, found = check_with(setting, tmp_path).values()
    assert (found.name, found.state) == ("MQTT", "fail")
    assert advice in found.advice


def test_a_broker_that_lets_strangers_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("topic read #\n")
    (tmp_path / "rules").chmod(0o644)
    found = check_with(f"acl_file {tmp_path / 'rules'}", tmp_path)
    assert (found["ACL"].state, found["federation"].state) == ("ok", "warn")
    assert "Give a user in the broker's address" in found["federation"].advice


@pytest.mark.parametrize(
    ("answers", "states_of"),
    [
        ([False, True], {"ACL": "warn"}),  # what comes later must not be taken for an answer to something else
        ([True, False], {"ACL": "ok", "federation": "warn"}),
        ([True, True], {"ACL": "ok", "federation": "fail"}),
    ],
)
def test_a_broker_that_does_not_answer_is_not_judged(
    answers: list[bool], states_of: dict[str, str], made: Federation
) -> None:
    """The broker refuses everything, but answers too late."""

    class Slow:
        refusals = 0

        def publish(self, _topic: str, _payload: bytes) -> None:
            self.refusals += 1

        def drain(self, _seconds: float) -> bool:
            return answers.pop(0)

    transport = cast("MqttTransport", Slow())
    assert states(_check_rights(transport, address_of(made, made.board_folder("pi")), "lab")) == states_of


def test_nobody_there() -> None:
    (found,) = check_broker(parse_broker_url(f"127.0.0.1:{free_port()}"), "lab")
    assert (found.name, found.state) == ("broker", "fail")
    assert "firewalls" in found.advice


def test_certificates_that_are_not_good(made: Federation, tmp_path: Path) -> None:
    now, ca = datetime.now(timezone.utc), made.folder / "authority"
    authority = load_identity((ca / "ca.crt").read_text(), (ca / "ca.key").read_text(), "x")

    def mine(days: float) -> dict[str, str]:
        identity = issue_certificate(authority, "pi", now + timedelta(days=days))
        (tmp_path / "x.crt").write_text(identity.certificate_pem)
        (tmp_path / "x.key").write_text(identity.key_pem)
        return {"cert": str(tmp_path / "x.crt"), "key": str(tmp_path / "x.key")}

    own = made.board_folder("pi")
    other = make_federation(tmp_path / "other", "lab", ["localhost"])
    with broker_of(made):
        soon = check_broker(address_of(made, own, **mine(9.5)), "lab")
        assert states(soon) == {**WELL, "own certificate": "warn", "ACL": "ok", "federation": "ok"}
        assert "valid for" in soon[1].said
        past = check_broker(address_of(made, own, **mine(-3)), "lab")
        assert states(past)["own certificate"] == "fail"
        assert "expired 3 days ago" in past[1].said
        revoked = check_broker(address_of(made, made.board_folder("gone")), "lab")
        assert (revoked[-1].name, revoked[-1].state) == ("MQTT", "fail")
        assert revoked[-1].said.endswith("refused this machine's certificate: it is revoked")
        assert "--renew" in revoked[-1].advice
        foreign = check_broker(address_of(made, own, ca=str(other.folder / "authority" / "ca.crt")), "lab")
        assert (foreign[-1].name, foreign[-1].state) == ("TLS", "fail")
        assert "--ca is that of another" in foreign[-1].advice
        unnamed = check_broker(address_of(made, own, ca=""), "lab")
        assert "Give the federation's CA with --ca" in unnamed[-1].advice
        broken = check_broker(address_of(made, own, key=str(own / "ca.crt")), "lab")
        assert (broken[-1].name, broken[-1].state) == ("TLS files", "fail")
    made.renew(["elsewhere.local"])
    (made.broker_folder / "broker.crt").write_text(
        issue_certificate(authority, "b", now + timedelta(9), ["b"]).certificate_pem
    )
    identity = issue_certificate(authority, "b", now + timedelta(days=9), ["b.local"])
    (made.broker_folder / "broker.crt").write_text(identity.certificate_pem)
    (made.broker_folder / "broker.key").write_text(identity.key_pem)
    with broker_of(made):
        found = check_broker(address_of(made, own), "lab")
    assert (found[-1].name, found[-1].state) == ("TLS", "fail")
    assert "--broker NAME" in found[-1].advice
    made.renew(["localhost"])


def test_what_is_read_of_a_certificate(made: Federation) -> None:
    path = made.board_folder("pi") / "tls.crt"
    assert read_certificate(str(path)) == Certificate("pi", "fedquilt lab", made.board("pi").until.timestamp())
    assert broker_user(address_of(made, made.board_folder("pi"))) == "pi"
    assert broker_user(parse_broker_url("mqtt://me:x@lab")) == "me"


@pytest.mark.parametrize(
    "decode", [None, dict, lambda _: {}, lambda _: {"subject": (), "issuer": (), "notAfter": "soon"}]
)
def test_a_python_that_cannot_read_certificates(
    decode: object, made: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is CPython's own and may change: then the end and the name are unknown, and nothing fails."""
    address = address_of(made, made.board_folder("pi"))
    monkeypatch.setattr(ssl, "_ssl", SimpleNamespace(_test_decode_cert=decode) if decode else SimpleNamespace())
    assert read_certificate(address.cert) is None
    assert broker_user(address) is None
    own = _check_own_certificate(address.cert)
    assert (own.state, "unknown" in own.said) == ("warn", True)
    assert own.advice.endswith(f"{address.cert}`")
    (federation,) = _check_own_topics(cast("MqttTransport", None), broker_user(address), "lab")
    assert (federation.state, "unknown" in federation.said) == ("warn", True)


def test_a_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.crt").write_text("nothing")
    for name in ("x.crt", "missing.crt"):
        with pytest.raises(OSError):  # noqa: PT011 - of the file system or of ssl
            read_certificate(str(tmp_path / name))


@pytest.mark.parametrize(("user", "tls", "state"), [
    ("coordinator", True, "ok"), (None, True, "warn"), ("pi", True, "fail"), ("", False, "warn"),
])  # fmt: skip
def test_a_client_that_may_write_everywhere(user: str | None, tls: bool, state: str) -> None:
    assert _check_acl(False, user, tls=tls).state == state


# -- the command -----------------------------------------------------------------------------------------------


def test_the_command_of_a_board(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    """On a board the command reads everything from the agent's file."""
    with broker_of(made):
        code = cli.run(["doctor", "--config", str(made.board_folder("pi") / "agent.yaml"), "--json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    told = {check["name"]: check["state"] for check in found}
    assert {name: told[name] for name in WELL} == WELL
    assert told["ACL"] == "ok"
    assert {"Python", "clock", "disk", "memory", "torch"} <= told.keys()
    assert code == (10 if "fail" in told.values() else 0)


def test_the_command_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--broker", f"127.0.0.1:{free_port()}"]) == 10
    out = capsys.readouterr().out
    assert out.startswith("fail broker")
    assert "Check that the broker runs" in out
    assert cli.run(["doctor", "--broker", "127.0.0.1:1", "--ca", "x"]) == 4
    assert cli.run(["doctor", "--config", "nothing.yaml"]) == 4
    assert cli.run(["doctor", "--broker", "127.0.0.1:1", "--federation", "a b/c"]) == 4


def test_no_torch_is_loaded_to_look_for_a_broker() -> None:
    words = "import sys, fedquilt_common.doctor.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
