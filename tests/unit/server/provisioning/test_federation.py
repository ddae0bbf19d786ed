"""Federations: the folder, and a real Mosquitto with its certificates and its ACL."""

from __future__ import annotations

import contextlib
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.support.peers import DELIVERED, NOT_AUTHORIZED, peer, running

from fedquilt_common.experiment.agent_config import AgentConfig, read_agent_config
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Connected, Incoming
from fedquilt_server.provisioning.authority import issue_certificate, load_identity, make_authority
from fedquilt_server.provisioning.broker_files import SYSTEM_FOLDER
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import find_mosquitto, free_port

FED = "fedquilt/v1/lab"
REPLY = "replies/3/1.0/0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A federation with two boards and a free port."""
    federation = make_federation(tmp_path_factory.mktemp("lab") / "federation", "lab", ["localhost"], free_port())
    for name in ("pi-1", "pi-2"):
        federation.provision(name, "pi4")
    return federation


@contextlib.contextmanager
def broker_of(federation: Federation) -> Iterator[int]:
    """The federation's own broker, as ``fedquilt federation broker`` runs it."""
    port = federation.record.port
    with running([str(find_mosquitto()), "-c", str(federation.broker_folder / "mosquitto.conf")], port):
        yield port


@pytest.fixture(scope="module")
def port(made: Federation) -> Iterator[int]:
    with broker_of(made) as number:
        yield number


def bundle(federation: Federation, name: str) -> Path:
    return federation.folder / name if name in ("coordinator", "watch") else federation.board_folder(name)


class Knock:
    """An attempt to connect. ``inside``: whether the broker accepted it."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._answered = threading.Event()
        self.inside = False
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="knock", protocol=mqtt.MQTTv5)
        if context is not None:
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_disconnect = lambda *_: self._answered.set()
        with contextlib.suppress(OSError):
            client.connect("localhost", port)
            client.loop_start()
            assert self._answered.wait(60)
            client.disconnect()
            client.loop_stop()

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
        self.inside = not reason.is_failure
        self._answered.set()


def context(trusted: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    settings = ssl.create_default_context(cafile=str(trusted))
    if certificate is not None:
        settings.load_cert_chain(str(certificate), str(key))
    return settings


def board_context(folder: Path) -> ssl.SSLContext:
    return context(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")


# -- connections and access rights ---------------------------------------------------------------------------


def test_a_board_writes_only_below_its_own_name(made: Federation, port: int) -> None:
    refused = [
        f"{FED}/agents/pi-2/presence", f"{FED}/agents/pi-2/{REPLY}", f"{FED}/agents/pi-2/inbox",
        f"{FED}/agents/pi-1/inbox", f"{FED}/agents/pi-1/anything", f"{FED}/coordinator", f"{FED}/run", f"{FED}/round",
        f"{FED}/slices/0/0", f"{FED}/soft-labels/0/0", f"{FED}/end", "elsewhere",
        "fedquilt/v1/other/agents/pi-1/presence",
    ]  # fmt: skip
    with peer(port, "any-client-id", certs=bundle(made, "pi-1")) as board:
        assert [topic for topic in refused if board.publish(topic) != NOT_AUTHORIZED] == []
        for allowed in ("presence", REPLY, "telemetry"):
            assert board.publish(f"{FED}/agents/pi-1/{allowed}") in DELIVERED


def test_a_board_reads_only_what_is_meant_for_it(made: Federation, port: int) -> None:
    shared = [
        "coordinator",
        "run",
        "round",
        "slices/0/0",
        "soft-labels/0/0",
        "end",
        "agents/pi-1/inbox",
        "agents/pi-1/presence",
    ]
    private = ["agents/pi-2/inbox", "agents/pi-2/presence", f"agents/pi-2/{REPLY}", "agents/pi-1/telemetry"]
    with (
        peer(port, "one", certs=bundle(made, "pi-1")) as board,
        peer(port, "two", certs=bundle(made, "coordinator")) as coordinator,
    ):
        board.subscribe("#")
        for topic in [*private, *shared]:
            assert coordinator.publish(f"{FED}/{topic}") in DELIVERED
        board.wait(lambda: len(board.topics) >= len(shared))
        assert board.topics == [f"{FED}/{topic}" for topic in shared]


def test_watch_reads_everything_and_says_nothing(made: Federation, port: int) -> None:
    with (
        peer(port, "one", certs=bundle(made, "watch")) as watch,
        peer(port, "two", certs=bundle(made, "pi-2")) as board,
    ):
        watch.subscribe(f"{FED}/#")
        board.publish(f"{FED}/agents/pi-2/telemetry")
        watch.wait(lambda: watch.topics)
        for topic in ("round", "agents/watch/presence", "agents/pi-2/inbox"):
            assert watch.publish(f"{FED}/{topic}") == NOT_AUTHORIZED


def test_who_is_turned_away(made: Federation, port: int, tmp_path: Path) -> None:
    """No TLS, or no certificate, or one that is self-signed, of another authority, expired, or a broker's."""
    own, other = bundle(made, "pi-1"), make_authority("lab", datetime.now(timezone.utc))
    soon = datetime.now(timezone.utc) + timedelta(days=9)
    authority = load_identity(
        (made.folder / "authority" / "ca.crt").read_text(), (made.folder / "authority" / "ca.key").read_text(), "x"
    )
    strangers = {
        "self-signed": other, "of another authority": issue_certificate(other, "pi-1", soon),
        "expired": issue_certificate(authority, "pi-1", datetime.now(timezone.utc) - timedelta(seconds=1)),
        "a broker's": issue_certificate(authority, "pi-1", soon, ["localhost"]),
    }  # fmt: skip
    assert Knock(port, board_context(own)).inside
    assert not Knock(port, None).inside
    assert not Knock(port, context(own / "ca.crt")).inside
    for name, identity in strangers.items():
        (tmp_path / "x.crt").write_text(identity.certificate_pem)
        (tmp_path / "x.key").write_text(identity.key_pem)
        assert not Knock(port, context(own / "ca.crt", tmp_path / "x.crt", tmp_path / "x.key")).inside, name
    good = issue_certificate(authority, "pi-1", soon)
    (tmp_path / "x.crt").write_text(good.certificate_pem)
    (tmp_path / "x.key").write_text(good.key_pem)
    assert Knock(port, context(own / "ca.crt", tmp_path / "x.crt", tmp_path / "x.key")).inside


def test_there_is_no_plain_mqtt_at_all(made: Federation) -> None:
    for name in ("mosquitto.conf", "mosquitto-tls.conf"):
        lines = (made.broker_folder / name).read_text().splitlines()
        assert [line for line in lines if line.startswith("listener")] == [f"listener {made.record.port}"]
        assert "require_certificate true" in lines
        assert "allow_anonymous false" in lines


def test_an_agents_own_configuration_leads_it_to_the_broker(made: Federation, port: int) -> None:
    """As ``fedquilt agent --config`` reads it: file names are relative to the configuration."""
    config = AgentConfig.model_validate(read_agent_config(bundle(made, "pi-1") / "agent.yaml"))
    assert (config.id, config.kind, config.clients, config.federation) == ("pi-1", "pi4", "0", "lab")
    connected = threading.Event()

    def deliver(incoming: Incoming) -> None:
        if isinstance(incoming, Connected):
            connected.set()

    address = parse_broker_url(config.broker).with_files(config.ca, config.cert, config.key)
    transport = MqttTransport(address, "agent", deliver)
    transport.connect()
    assert connected.wait(60)
    transport.close()


def test_the_configuration_for_the_systems_own_mosquitto(made: Federation, tmp_path: Path) -> None:
    """With its files in another folder, as Ansible installs them."""
    text = (made.broker_folder / "mosquitto-tls.conf").read_text()
    named = {line.split()[1] for line in text.splitlines() if SYSTEM_FOLDER in line and not line.startswith("#")}
    assert named == {f"{SYSTEM_FOLDER}/{name}" for name in ("ca.crt", "broker.crt", "broker.key", "revoked.crl", "acl")}
    other = free_port()
    config = tmp_path / "mosquitto.conf"
    text = text.replace(SYSTEM_FOLDER, str(made.broker_folder)).replace(
        f"listener {made.record.port}", f"listener {other}"
    )
    config.write_text(text + "user root\n")
    with running([str(find_mosquitto()), "-c", str(config)], other):
        assert Knock(other, board_context(bundle(made, "pi-2"))).inside


# -- the folder ------------------------------------------------------------------------------------------------


def test_secrets_are_for_their_owner_only(made: Federation) -> None:
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    keys = list(made.folder.rglob("*.key"))
    assert len(keys) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_openssl_finds_no_fault_with_any_certificate(made: Federation) -> None:
    """With its strictest rules, which newer versions of Python use."""
    trusted, withdrawn = made.folder / "authority" / "ca.crt", made.broker_folder / "revoked.crl"
    ours = [bundle(made, name) / "tls.crt" for name in ("pi-1", "watch")] + [made.broker_folder / "broker.crt"]
    words = ["openssl", "verify", "-x509_strict", "-crl_check", "-CAfile", str(trusted), "-CRLfile", str(withdrawn)]
    done = subprocess.run([*words, *map(str, ours)], capture_output=True, text=True, check=False)
    assert done.stdout.count(": OK") == 3, done.stdout + done.stderr
