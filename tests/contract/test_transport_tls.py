"""mqtts:// with certificates made for the test: which are trusted, and the errors for the others."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport

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
    for name in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}")
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


# paho 2.2 leaves a socket whose handshake failed to the garbage collector
@pytest.mark.filterwarnings("ignore:Exception ignored in.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
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
    gc.collect()  # now, while the filter above holds


def test_a_board_shows_its_certificate(start: Start, mqtt: Mqtt, certs: Path) -> None:
    broker, address = secure(start, certs, "require_certificate true\n")
    side = mqtt(broker)
    files = [str(certs / name) for name in ("ca.crt", "board.crt", "board.key")]
    side.peer(address=address.with_files(*files)).connect().settle()
    stranger = side.peer(address=address.with_files(files[0], "", ""))
    stranger.transport.connect()
    stranger.inbox.wait(lambda: stranger.losses)
    assert stranger.connections == []
    assert "may refuse this machine's certificate" in stranger.losses[0].advice


@pytest.mark.parametrize(
    "files", [("missing", "", ""), ("", "missing", ""), ("names", "", ""), ("", "ca.crt", "other.key")]
)
def test_files_that_cannot_be_used(certs: Path, files: tuple[str, str, str]) -> None:
    paths = [str(certs / name) if name else "" for name in files]
    address = parse_broker_url("mqtts://localhost").with_files(*paths)
    with pytest.raises(
        BrokerUnreachableError, match=r"TLS files for mqtts://localhost:8883 .* Check --ca, --cert and --key"
    ):
        MqttTransport(address, "x", print)
