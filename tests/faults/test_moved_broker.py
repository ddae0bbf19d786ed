"""A broker that the boards find by mDNS: it moves to another address, and an impostor answers for its name."""

from __future__ import annotations

import gc
import queue
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.support.peers import bare_broker

from fedquilt_common.doctor.broker import check_broker
from fedquilt_common.errors import FederationError
from fedquilt_common.wire import discovery
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming
from fedquilt_server.provisioning.announce import keep_announced
from fedquilt_server.provisioning.authority import issue_certificate, load_identity
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.names import broker_name
from fedquilt_server.simulate.mosquitto import free_port

pytest.importorskip("zeroconf", reason="zeroconf is not installed: pip install 'fedquilt[mdns]'")
LOOPBACK = ["127.0.0.1"]


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask on the loopback interface only, on a system that resolves no name in .local by itself."""
    monkeypatch.setattr(discovery, "interfaces", LOOPBACK)
    monkeypatch.setattr(discovery, "QUERY_SECONDS", 60.0)  # whoever announces a name may be slow to begin
    resolve = socket.create_connection

    def without_system_mdns(address: tuple[str, int], *more: Any, **named: Any) -> socket.socket:
        if address[0].endswith(".local"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(address, *more, **named)

    monkeypatch.setattr(socket, "create_connection", without_system_mdns)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """A federation with a name that no other test announces, and one board."""
    name = f"lab-{free_port()}"
    federation = make_federation(tmp_path / "federation", name, [broker_name(name), "10.9.9.9"], free_port())
    federation.provision("kitchen", "pi4")
    return federation


@contextmanager
def announced(federation: Federation, addresses: list[str]) -> Iterator[None]:
    """Announce the federation's broker; a change of ``addresses`` is announced, too."""
    done = threading.Event()
    problems: list[Exception] = []

    def work() -> None:
        try:
            keep_announced(federation.record, lambda: list(addresses), done.is_set, LOOPBACK)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not problems


def board_address(federation: Federation) -> BrokerAddress:
    folder = federation.board_folder("kitchen")
    files = [str(folder / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    return parse_broker_url(federation.record.url).with_files(*files)


@contextmanager
def connecting(federation: Federation) -> Iterator[Callable[[type[Incoming]], Incoming]]:
    """A board's transport; yields a function that waits for an event of a type."""
    events: queue.Queue[Incoming] = queue.Queue()
    transport = MqttTransport(board_address(federation), "board", events.put, session_expiry=0)

    def wait_for(kind: type[Incoming]) -> Incoming:
        while not isinstance(event := events.get(timeout=60), kind):
            pass
        return event

    transport.connect()
    try:
        yield wait_for
    finally:
        transport.close(end_session=True)


def test_a_board_finds_the_broker_by_its_name_and_again_at_another_address(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedquilt_server.provisioning.announce.CHECK_SECONDS", 0.2)
    assert federation.record.url == f"mqtts://{broker_name(federation.record.name)}:{federation.record.port}"
    addresses = ["127.0.0.2"]  # nothing listens there yet
    with announced(federation, addresses), connecting(federation) as wait_for:
        wait_for(Disconnected)
        with bare_broker(federation.folder, federation.record.port):
            wait_for(Connected)  # Mosquitto listens on every address of the loopback
            wait_for_answer(federation, ["127.0.0.2"])
        wait_for(Disconnected)
        addresses[:] = ["127.0.0.3"]
        wait_for_answer(federation, ["127.0.0.3"])
        with bare_broker(federation.folder, federation.record.port):
            wait_for(Connected)


def wait_for_answer(federation: Federation, addresses: list[str]) -> None:
    """Wait until the network answers with these addresses."""
    end = time.monotonic() + 60
    while True:
        try:
            found = discovery.resolve_mdns(broker_name(federation.record.name))
        except OSError:
            found = []
        if found == addresses:
            return
        assert time.monotonic() < end, found


def test_an_impostor_that_answers_for_the_name_is_not_trusted(federation: Federation, tmp_path: Path) -> None:
    """It has a certificate for the same name, of an authority of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what earlier tests have left open
    impostor = make_federation(
        tmp_path / "impostor", federation.record.name, [broker_name(federation.record.name)], federation.record.port
    )
    with bare_broker(impostor.folder, impostor.record.port), announced(impostor, ["127.0.0.1"]):
        with connecting(federation) as wait_for:
            event = wait_for(Disconnected)
            assert isinstance(event, Disconnected)
            assert "certificate verify failed" in event.reason
        checks = {check.name: check.state for check in check_broker(board_address(federation), federation.record.name)}
        assert (checks["broker"], checks["TLS"]) == ("ok", "fail")
    gc.collect()  # reports a socket that was left open


def test_a_board_of_the_federation_cannot_stand_for_the_broker(federation: Federation) -> None:
    """A stolen card has a certificate of the right authority, but for a client and without the broker's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = federation.board_folder("kitchen")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    with socket.create_server(("127.0.0.1", federation.record.port)) as server, announced(federation, ["127.0.0.1"]):
        thread = threading.Thread(target=answer_once, args=(server, context))
        thread.start()
        with connecting(federation) as wait_for:
            event = wait_for(Disconnected)
        server.close()
        thread.join()
    assert isinstance(event, Disconnected)
    assert "certificate verify failed" in event.reason
    gc.collect()


def test_the_broker_of_the_same_authority_must_have_the_name(federation: Federation) -> None:
    """For example a broker whose certificate is older than the name: its address does not count."""
    folder = federation.folder / "authority"
    authority = load_identity((folder / "ca.crt").read_text(), (folder / "ca.key").read_text(), "authority")
    until = datetime.now(timezone.utc) + timedelta(days=9)
    old = issue_certificate(authority, "10.9.9.9", until, ["10.9.9.9", "localhost", "127.0.0.1"])
    (federation.broker_folder / "broker.crt").write_text(old.certificate_pem)
    (federation.broker_folder / "broker.key").write_text(old.key_pem)
    with (
        bare_broker(federation.folder, federation.record.port),
        announced(federation, ["127.0.0.1"]),
        connecting(federation) as wait_for,
    ):
        event = wait_for(Disconnected)
    assert isinstance(event, Disconnected)
    assert "certificate is not valid for" in event.reason or "ostname mismatch" in event.reason
    gc.collect()


def answer_once(server: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = server.accept()
    with connection:
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            return


def test_nobody_announces_the_broker(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "QUERY_SECONDS", 0.3)
    (check,) = check_broker(board_address(federation), federation.record.name)
    assert check.state == "fail"
    assert f"nobody in this network announces {broker_name(federation.record.name)}" in check.said


def test_two_machines_do_not_announce_one_federation(federation: Federation) -> None:
    with announced(federation, ["127.0.0.1"]):
        wait_for_answer(federation, ["127.0.0.1"])
        with pytest.raises(FederationError, match="another machine announces the broker"):
            keep_announced(federation.record, lambda: ["127.0.0.9"], lambda: False, LOOPBACK)


def test_a_machine_without_a_network(federation: Federation) -> None:
    with pytest.raises(FederationError, match="has no address"):
        keep_announced(federation.record, list, lambda: False, LOOPBACK)


@pytest.mark.parametrize(
    ("federation_name", "name"), [("lab", "fedquilt-lab.local"), ("My_Lab.2", "fedquilt-my-lab-2.local")]
)
def test_the_name_stays(federation_name: str, name: str) -> None:
    assert broker_name(federation_name) == name
