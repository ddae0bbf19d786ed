"""mqtts:// with certificates made for the test: which are trusted, and the errors for the others."""

from __future__ import annotations

import gc
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.contract.conftest import Inbox
from tests.support.peers import running

from fedquilt_common.errors import ExperimentError
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.wire import tls as tls_module
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.mqtt_limits import LARGEST_PACKET
from fedquilt_common.wire.tls import TLS_1_2_CIPHERS, tls_context
from fedquilt_common.wire.transport import Connected, Disconnected
from fedquilt_server.provisioning.authority import issue_certificate, load_identity
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import find_mosquitto, free_port

if TYPE_CHECKING:
    from tests.contract.conftest import Broker, MqttSide, Start

    Mqtt = Callable[[Broker], MqttSide]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two CAs; the first has signed the certificates of the server (``localhost`` only) and of a board."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed: sudo apt-get install openssl")
    folder = tmp_path_factory.mktemp("certs")

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 refuses a CA without it
    for name in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}", *usage)
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    for name in ("server", "board"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signer)
    return folder


def secure(start: Start, certs: Path, more: str = "") -> tuple[Broker, BrokerAddress]:
    files = f"cafile {certs}/ca.crt\ncertfile {certs}/server.crt\nkeyfile {certs}/server.key\n"
    broker = start(files + more)
    return broker, BrokerAddress("localhost", broker.port, tls=True)


def test_messages_pass_over_tls(start: Start, mqtt: Mqtt, certs: Path) -> None:
    broker, address = secure(start, certs)
    peer = mqtt(broker).peer(address=address.with_files(str(certs / "ca.crt"), "", "")).connect()
    peer.subscribe("x")
    peer.publish("x", bytes(300_000), header=b"h")
    peer.inbox.wait(lambda: peer.messages)
    assert (peer.payloads, peer.messages[0].header) == ([bytes(300_000)], b"h")


@pytest.mark.parametrize(("host", "ca"), [("localhost", ""), ("localhost", "other.crt"), ("127.0.0.1", "ca.crt")])
def test_a_certificate_that_cannot_be_trusted(start: Start, mqtt: Mqtt, certs: Path, host: str, ca: str) -> None:
    """The system has no such CA; the CA is another one; the certificate is for another host."""
    broker, address = secure(start, certs)
    address = replace(address, host=host, ca=str(certs / ca) if ca else "")
    peer = mqtt(broker).peer(address=address)
    peer.transport.connect()
    peer.inbox.wait(lambda: peer.losses)
    assert f"mqtts://{host}:{broker.port}" in peer.losses[0].reason
    assert "certificate verify failed" in peer.losses[0].reason
    assert "Check the CA" in peer.losses[0].advice
    assert peer.connections == []
    assert not peer.transport.publish("x", b"secret")
    peer.transport.close()
    gc.collect()  # reports a socket that was left open


def test_a_board_shows_its_certificate(start: Start, mqtt: Mqtt, certs: Path) -> None:
    broker, address = secure(start, certs, "require_certificate true\n")
    side = mqtt(broker)
    files = [str(certs / name) for name in ("ca.crt", "board.crt", "board.key")]
    side.peer(address=address.with_files(*files)).connect().settle()
    stranger = side.peer(address=address.with_files(files[0], "", ""))
    stranger.transport.connect()
    stranger.inbox.wait(lambda: stranger.losses)
    assert stranger.connections == []
    assert stranger.losses[0].reason == f"{address} refused this machine's certificate: none was given"
    advice = stranger.losses[0].advice
    assert all(words in advice for words in ("--cert and --key", "federation/coordinator", "federation/watch"))


@pytest.mark.parametrize("tls", [False, True], ids=["plain at TLS", "TLS at plain"])
def test_the_wrong_protocol_is_named_with_the_address_to_write(
    start: Start, mqtt: Mqtt, certs: Path, tls: bool
) -> None:
    broker = start() if tls else secure(start, certs)[0]
    address = BrokerAddress("localhost", broker.port, tls=tls)
    peer = mqtt(broker).peer(address=address)
    peer.transport.connect()
    peer.inbox.wait(lambda: peer.losses)
    assert peer.losses[0].refused
    assert peer.losses[0].reason == f"{address} {'does not use' if tls else 'requires'} TLS"
    assert str(replace(address, tls=not tls)) in peer.losses[0].advice
    peer.transport.close()
    gc.collect()  # reports a socket that was left open


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation whose broker runs. It has a revoked board, and one of another authority."""
    folder = tmp_path_factory.mktemp("lab")
    made, other = (make_federation(folder / name, "lab", ["localhost"], free_port()) for name in ("f", "other"))
    other.provision("foreign", "pi4")
    shutil.copytree(other.board_folder("foreign"), made.board_folder("foreign"))
    shutil.copy(made.folder / "authority" / "ca.crt", made.board_folder("foreign"))
    made.provision("revoked", "pi4")
    made.revoke("revoked")
    made.provision("expired", "pi4")
    made.provision("renewed", "pi4")
    write_expired_certificate(made, "expired")
    with running([str(find_mosquitto()), "-c", str(made.broker_folder / "mosquitto.conf")], made.record.port):
        yield made


def write_expired_certificate(federation: Federation, board: str) -> None:
    authority = federation.folder / "authority"
    signer = load_identity((authority / "ca.crt").read_text(), (authority / "ca.key").read_text(), "x")
    identity = issue_certificate(signer, board, datetime.now(timezone.utc) - timedelta(seconds=1))
    (federation.board_folder(board) / "tls.crt").write_text(identity.certificate_pem)
    (federation.board_folder(board) / "tls.key").write_text(identity.key_pem)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("board", "reason", "advice"),
    [
        ("revoked", "it is revoked", "`fedquilt provision NAME --renew`"),
        ("expired", "it has expired by the broker's clock", "Check the clock of the broker's machine"),
        ("foreign", "another authority has issued it", "in this broker's federation"),
    ],
)
def test_a_refused_certificate_is_reported_with_the_reason(
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    board: str,
    reason: str,
    advice: str,
    newest: ssl.TLSVersion,
) -> None:
    def context(address: BrokerAddress) -> ssl.SSLContext:
        made = tls_context(address)
        made.maximum_version = newest
        return made

    monkeypatch.setattr(tls_module, "tls_context", context)
    folder, found = federation.board_folder(board), Inbox(ack=True)
    files = [str(folder / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    address = parse_broker_url(federation.record.url).with_files(*files)
    transport = MqttTransport(address, board, found)
    transport.connect()
    try:
        # A broker that closes the connection before its alert is read gives the reason at another attempt.
        found.wait(lambda: any(isinstance(one, Disconnected) and one.refused for one in found.items))
    finally:
        transport.close()
    lost = next(one for one in found.items if isinstance(one, Disconnected) and one.refused)
    assert lost.reason == f"{address} refused this machine's certificate: {reason}"
    assert advice in lost.advice
    gc.collect()  # reports a socket that was left open


def test_replaced_files_are_read_at_the_next_attempt(
    federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificate and key are replaced one after the other, so files that do not match leave the old ones in use."""
    names, found = ("ca.crt", "tls.crt", "tls.key"), Inbox(ack=True)
    for name in names:
        shutil.copy(federation.board_folder("revoked") / name, tmp_path)
    address = parse_broker_url(federation.record.url).with_files(*(str(tmp_path / name) for name in names))
    transport = MqttTransport(address, "renewed", found)

    def renew(name: str) -> None:
        """Replace a file as a whole: the transport reads it at any moment."""
        write_atomically(tmp_path / name, (federation.board_folder("renewed") / name).read_text())

    transport.connect()
    try:
        found.wait(lambda: found.items)
        renew("tls.crt")
        found.wait(lambda: caplog.messages)
        seen = len(found.items)
        found.wait(lambda: len(found.items) > seen + 1)
        # A broker that closes the connection before its alert is read gives the advice instead of the reason.
        refused = [item for item in found.items if isinstance(item, Disconnected)]
        assert len(refused) == len(found.items)
        assert all("revoked" in item.reason + item.advice for item in refused)
        renew("tls.key")
        found.wait(lambda: isinstance(found.items[-1], Connected))
    finally:
        transport.close()
    (warning,) = caplog.messages
    assert "cannot be used" in warning
    assert warning.endswith("The files that were read before remain in use")
    gc.collect()  # reports a socket that was left open


def shake_hands(federation: Federation, ciphers: str, newest: ssl.TLSVersion) -> tuple[str, str]:
    """Return the suite and the version of a TLS connection of the federation's coordinator.

    Args:
        federation: whose broker runs.
        ciphers: the suites of TLS 1.2 and older that the client offers.
        newest: the newest version that it offers.
    """
    own = federation.folder / "coordinator"
    context = ssl.create_default_context(cafile=str(own / "ca.crt"))
    context.load_cert_chain(str(own / "tls.crt"), str(own / "tls.key"))
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TLS 1.1, which the broker must refuse
        context.minimum_version = context.maximum_version = newest
    with (
        socket.create_connection(("localhost", federation.record.port), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        suite = secure.cipher()
        assert suite is not None
        return suite[0], suite[1]


@pytest.mark.parametrize("ciphers", ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"])
def test_the_brokers_configuration_accepts_suites_with_authenticated_encryption(
    federation: Federation, ciphers: str
) -> None:
    assert shake_hands(federation, ciphers, ssl.TLSVersion.TLSv1_2) == (ciphers, "TLSv1.2")
    assert shake_hands(federation, ciphers, ssl.TLSVersion.TLSv1_3)[1] == "TLSv1.3"


@pytest.mark.parametrize("ciphers", ["ECDHE-ECDSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA", "AES256-GCM-SHA384"])
def test_the_brokers_configuration_refuses_cbc_suites_and_rsa_key_exchange(
    federation: Federation, ciphers: str
) -> None:
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        shake_hands(federation, ciphers, ssl.TLSVersion.TLSv1_2)


def test_the_brokers_configuration_refuses_tls_1_1(federation: Federation) -> None:
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        shake_hands(federation, "ALL", ssl.TLSVersion.TLSv1_1)


def test_client_and_broker_offer_the_same_suites(federation: Federation) -> None:
    """Suites of TLS 1.2; those of TLS 1.3 cannot be chosen here, and all of them are good."""
    assert f"ciphers {TLS_1_2_CIPHERS}" in (federation.broker_folder / "mosquitto.conf").read_text().splitlines()
    context = tls_context(BrokerAddress("localhost", 8883, tls=True))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    old = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] == "TLSv1.2"]
    assert old
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in old), old


def test_the_brokers_configuration_takes_the_largest_packets_of_clients_and_no_larger_ones(
    federation: Federation,
) -> None:
    for name in ("mosquitto.conf", "mosquitto-tls.conf"):
        lines = (federation.broker_folder / name).read_text().splitlines()
        assert f"max_packet_size {LARGEST_PACKET}" in lines


@pytest.mark.parametrize(
    "files", [("missing", "", ""), ("", "missing", ""), ("names", "", ""), ("", "ca.crt", "other.key")]
)
def test_files_that_cannot_be_used(certs: Path, files: tuple[str, str, str]) -> None:
    paths = [str(certs / name) if name else "" for name in files]
    address = parse_broker_url("mqtts://localhost").with_files(*paths)
    with pytest.raises(ExperimentError, match=r"TLS files for mqtts://localhost:8883 .* Check --ca, --cert and --key"):
        MqttTransport(address, "x", print)
