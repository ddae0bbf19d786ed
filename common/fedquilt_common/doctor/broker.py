"""Check the way to the broker in steps; each step needs the one before, so the first failure is the cause."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fedquilt_common.doctor.bridge import check_bridge
from fedquilt_common.doctor.check import Check, grade
from fedquilt_common.doctor.clock import coordinator_time, grade_skew
from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.certificate import broker_user, read_certificate
from fedquilt_common.wire.chunks import CHUNK
from fedquilt_common.wire.connection_errors import NO_ANSWER, explain_other_protocol
from fedquilt_common.wire.discovery import open_connection
from fedquilt_common.wire.mosquitto_version import VERSION_TOPIC, can_reload, name_version, parse_version
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.other_protocol import uses_other_protocol
from fedquilt_common.wire.tls import tls_context
from fedquilt_common.wire.topics import COORDINATOR, HOME_ASSISTANT, SITE_USER, WATCH, Topics
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming, MqttMessage

SECONDS: Final = 10.0
"""Seconds to wait for each answer."""
OWN_CERTIFICATE: Final = "own certificate"
"""Name of the check of this machine's certificate."""
PROBE: Final = "doctor-probe"
"""An agent that does not exist: a client that may write to its inbox may write to any inbox."""
_BOARDS_RIGHTS: Final = (
    "Either the broker's ACL does not name this board: restart the broker with the ACL of `fedquilt provision`. Or the "
    "federation's name is wrong: check agent.yaml or --federation"
)
_COORDINATORS_RIGHTS: Final = (
    "Either the federation's name is wrong: check --federation. Or the broker uses the ACL of another federation: "
    "restart the broker with the ACL of this one"
)
_ANONYMOUS: Final = (
    "Give a user in the broker's address (mqtt://USER@HOST) whom its ACL allows to write, or a certificate. Or let the "
    "ACL allow everybody to write below fedquilt/"
)
_DAY: Final = 86_400.0
WARN_DAYS: Final = 30.0
"""A certificate that is valid for fewer days should be renewed."""
_FAIL_DAYS: Final = 0.0


def check_broker(address: BrokerAddress, federation: str, site: str = "") -> list[Check]:
    """Check that the broker is reachable, its TLS and certificates, MQTT, its largest packet and its ACL.

    Args:
        address: the broker, with the files to use.
        federation: the name space in which to try what this machine may write.
        site: the site of the broker, to check its bridge too; empty: do not.

    Returns:
        The checks in order, up to the first failure that makes the next ones impossible.
    """
    checks = check_way(address)
    if any(check.state == "fail" for check in checks):
        return checks
    return [*checks, *_check_mqtt(address, federation, site)]


def check_way(address: BrokerAddress) -> list[Check]:
    """Check that the broker is reachable, its TLS and certificates; nothing of MQTT.

    Args:
        address: the broker, with the files to use.
    """
    try:
        context = tls_context(address) if address.tls else None
    except FedquiltError as error:
        return [Check("TLS files", "fail", str(error), "Provision the board again, or correct its agent.yaml")]
    try:
        connection = open_connection(address.host, address.port, SECONDS)
    except OSError as error:
        advice = "Check that the broker runs, its name or address, the port, the network cable or Wi-Fi, and firewalls"
        return [Check("broker", "fail", f"nothing answers at {address}: {error}", advice)]
    with connection:
        checks = [Check("broker", "ok", f"something answers at {address}")]
        return checks + _check_tls(address, context, connection) if context is not None else checks


def _check_tls(address: BrokerAddress, context: ssl.SSLContext, connection: socket.socket) -> list[Check]:
    checks = [_check_own_certificate(address.cert)] if address.cert else []
    try:
        with context.wrap_socket(connection, server_hostname=address.host) as secure:
            certificate: Any = secure.getpeercert()
            _end_tls(secure)
    except ssl.SSLCertVerificationError as error:
        return [
            *checks,
            Check("TLS", "fail", f"the broker's certificate: {error.verify_message}", _trust_advice(error, address.ca)),
        ]
    except OSError as error:
        return [*checks, _explain_failed_handshake(address, error)]
    return [*checks, _grade_days("broker's certificate", ssl.cert_time_to_seconds(certificate["notAfter"]))]


def _explain_failed_handshake(address: BrokerAddress, error: OSError) -> Check:
    if uses_other_protocol(address, error):
        other = explain_other_protocol(address)
        return Check("TLS", "fail", other.reason, other.advice)
    return Check("TLS", "fail", f"no TLS connection: {error}", "Check that the port is the one for TLS (usually 8883)")


def _end_tls(connection: ssl.SSLSocket) -> None:
    """End a TLS connection as its protocol demands; otherwise OpenSSL writes an error to the broker's log."""
    with contextlib.suppress(OSError):  # a refusal of this machine's certificate is a matter of the MQTT check
        connection.unwrap()


def _trust_advice(error: ssl.SSLCertVerificationError, ca: str) -> str:
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return "Check this machine's clock first (`date`), then renew the certificate: `fedquilt federation renew`"
    if "match" in error.verify_message:
        return "The broker has another name: `fedquilt federation renew --broker NAME`, or use a name that it has"
    if not ca:
        return "Give the federation's CA with --ca: ca.crt of the board's files, or of federation/coordinator"
    return "This is not the broker of this federation, or --ca is that of another federation"


def _check_own_certificate(path: str) -> Check:
    certificate = read_certificate(path)
    if certificate is None:
        advice = f"Read it with `openssl x509 -noout -enddate -in {path}`"
        return Check(OWN_CERTIFICATE, "warn", "its end is unknown: this Python cannot read certificates", advice)
    return _grade_days(OWN_CERTIFICATE, certificate.end)


def _grade_days(name: str, end: float) -> Check:
    days = (end - time.time()) / _DAY
    finding = (
        f"valid for {days:.0f} more days" if days >= 0 else f"expired {-days:.0f} days ago (by this machine's clock)"
    )
    advice = (
        "Renew it: `fedquilt provision BOARD --renew`, `fedquilt federation broker --site SITE --renew` or `fedquilt "
        "federation renew`; check the clock (`date`)"
    )
    return grade(name, days, WARN_DAYS, _FAIL_DAYS, finding, advice)


@dataclass
class _Visit:
    """A connection for the doctor alone, which does not disturb that of an agent or a coordinator.

    Attributes:
        events: what happened to the connection.
        messages: the latest message of each topic.
        arrivals: when it arrived, in seconds since 1970.
        changed: set by the first event.
    """

    address: BrokerAddress
    events: list[Incoming] = field(default_factory=list)
    messages: dict[str, MqttMessage] = field(default_factory=dict)
    arrivals: dict[str, float] = field(default_factory=dict)
    changed: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def open(self) -> Iterator[MqttTransport]:
        name = f"fedquilt-doctor-{secrets.token_hex(4)}"
        transport = MqttTransport(self.address, name, self._deliver, session_expiry=0)
        transport.connect()
        try:
            self.changed.wait(SECONDS)
            yield transport
        finally:
            transport.close()

    def payload(self, topic: str) -> bytes | None:
        """Return the latest payload of a topic; None without a message."""
        message = self.messages.get(topic)
        return None if message is None else message.payload

    def _deliver(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            incoming.ack()
            self.arrivals[incoming.topic] = time.time()
            self.messages[incoming.topic] = incoming
        else:
            self.events.append(incoming)
            self.changed.set()


def _check_mqtt(address: BrokerAddress, federation: str, site: str) -> list[Check]:
    visit, topics = _Visit(address), Topics(federation)
    try:
        with visit.open() as transport:
            if not visit.events or not isinstance(visit.events[0], Connected):
                return [_explain_refusal(visit.events[0] if visit.events else None, address)]
            coordinator, bridge = topics.coordinator, [topics.site(site)] if site else []
            # a reload does no damage where certificates do not name the users
            transport.subscribe([coordinator, *bridge, *([VERSION_TOPIC] if address.cert else [])])
            return [
                Check("MQTT", "ok", "the broker accepts an MQTT 5 connection from this machine"),
                _check_packets(transport.max_payload),
                *_check_rights(transport, address, federation),
                # what is retained came before the answers to the tests of the rights
                *(check_bridge(site, visit.payload(topic)) for topic in bridge),
                *_check_version(visit.messages.get(VERSION_TOPIC)),
                *_check_coordinators_clock(visit.messages.get(coordinator), visit.arrivals.get(coordinator, 0.0)),
                *_check_chunk(transport, topics.inbox(PROBE), visit.events),  # last: it may end the connection
            ]
    except FedquiltError as error:
        return [Check("MQTT", "fail", str(error))]


def _explain_refusal(event: Incoming | None, address: BrokerAddress) -> Check:
    if not isinstance(event, Disconnected):
        event = Disconnected(f"no answer from {address} in {SECONDS:.0f} seconds", advice=NO_ANSWER)
    return Check("MQTT", "fail", event.reason, event.advice)


def _check_coordinators_clock(presence: MqttMessage | None, arrived: float) -> list[Check]:
    """Compare this machine's clock with the coordinator's; no result without a coordinator that is connected."""
    theirs = None if presence is None else coordinator_time(presence)
    return [] if theirs is None else [grade_skew("coordinator's clock", arrived - theirs, "the coordinator")]


def _check_version(message: MqttMessage | None) -> list[Check]:
    """Check that the broker's version can reload its files; no result from other brokers, or without the right."""
    version = None if message is None else parse_version(message.payload.decode("utf-8", "replace"))
    if version is None:
        return []
    if can_reload(version):
        return [Check("broker's version", "ok", f"{name_version(version)} can reload its files")]
    advice = (
        "Restart it when its files change: `sudo systemctl restart mosquitto`. Before Mosquitto 2.1, a reload (SIGHUP) "
        "damages its memory. Debian's logrotate reloads it, too: see docs/deploy.md"
    )
    return [Check("broker's version", "warn", f"{name_version(version)} must be restarted, never reloaded", advice)]


def _check_packets(most: int) -> Check:
    finding = f"the broker accepts payloads of up to {most / 1024:.0f} KiB"
    advice = "Raise the broker's max_packet_size: chunks are as small as it says, so large models travel slower"
    return grade("largest packet", most, CHUNK, 1024, finding, advice)


def _check_chunk(transport: MqttTransport, topic: str, events: list[Incoming]) -> list[Check]:
    """Send a message as large as a chunk to an unread topic; report a check only if the broker then disconnects.

    Mosquitto never announces its ``message_size_limit``. A larger message ends the connection.
    """
    size, before = min(CHUNK, transport.max_payload), len(events)
    with _without_warnings():
        transport.publish(topic, bytes(size))
        transport.drain(SECONDS)
    if not any(isinstance(event, Disconnected) for event in events[before:]):
        return []
    finding = f"the broker ends the connection at a message of {size / 1024:.0f} KiB"
    advice = "Raise Mosquitto's message_size_limit, or remove it: models travel in chunks of this size"
    return [Check("largest message", "fail", finding, advice)]


def _check_rights(transport: MqttTransport, address: BrokerAddress, federation: str) -> list[Check]:
    """Check what this machine may write; a late answer to the first test must not count for the second."""
    refused = _is_refused(transport, Topics(federation).inbox(PROBE))
    if refused is None:
        return [_report_silence("ACL")]
    user = broker_user(address)
    acl = _check_acl(refused, user, tls=address.tls)
    if user in (WATCH, HOME_ASSISTANT):
        return [acl, *_check_issuer(address.cert, user, federation)]
    return [acl, *_check_own_topics(transport, user, federation)]


def _report_silence(name: str) -> Check:
    advice = "The link is slow or the broker is busy; try again"
    return Check(name, "warn", f"no answer in {SECONDS:.0f} seconds", advice)


def _check_acl(refused: bool, user: str | None, *, tls: bool) -> Check:
    """Judge the ACL.

    Args:
        refused: whether the broker refused a message to an inbox that no agent may write to and no agent reads.
        user: this machine's user at the broker; None: unknown.
        tls: whether the connection uses TLS.
    """
    if refused:
        return Check("ACL", "ok", "the broker refused a message to another client's topic")
    if user == COORDINATOR:
        return Check("ACL", "ok", "not tested: the coordinator may write to every topic")
    advice = "Use the federation's ACL (`fedquilt federation init`), or keep the broker off networks that others use"
    if user is None:
        return Check(
            "ACL", "warn", "unknown: this machine may write to every topic, as only the coordinator may", advice
        )
    return Check("ACL", "fail" if tls else "warn", "every client can write to the topics of every other", advice)


def _check_own_topics(transport: MqttTransport, user: str | None, federation: str) -> list[Check]:
    """Check that a board, a site's bridge, the coordinator or a client without a user may write in this federation.

    The message is empty, so the coordinator ignores it; that of the coordinator has no reader.
    """
    if user is None:
        advice = (
            "Read the board's name with `openssl x509 -noout -subject -in FILE`; `fedquilt boards` lists all boards"
        )
        return [Check("federation", "warn", "unknown: this Python cannot read the certificate's name", advice)]
    refused = _is_refused(transport, _own_topic(user or PROBE, Topics(federation)))
    if refused is None:
        return [_report_silence("federation")]
    if not user:
        finding = f"without a user, this machine may not write what an agent {PROBE!r} writes"
        return [Check("federation", "warn", finding, _ANONYMOUS)] if refused else []
    if not refused:
        return [Check("federation", "ok", f"{user} may write in the federation {federation!r}")]
    advice = _COORDINATORS_RIGHTS if user == COORDINATOR else _BOARDS_RIGHTS
    return [Check("federation", "fail", f"{user} may not write in the federation {federation!r}", advice)]


def _own_topic(user: str, topics: Topics) -> str:
    """Return a topic that a user may write, and whose readers ignore an empty message."""
    if user == COORDINATOR:
        return topics.inbox(PROBE)
    if user.startswith(SITE_USER):
        return topics.site(user.removeprefix(SITE_USER))
    return topics.telemetry(user)


def _check_issuer(cert: str, user: str, federation: str) -> list[Check]:
    """Check that the certificate of a user that may not write in any federation is of this one."""
    certificate = read_certificate(cert) if cert else None
    named = certificate.federation if certificate is not None else ""
    if not named:
        finding = f"unknown: {user} may write nowhere, and its certificate does not name the federation"
        return [Check("federation", "warn", finding, "Check --federation: with a wrong name, nothing arrives")]
    if named == federation:
        return [Check("federation", "ok", f"{user} is of the federation {federation!r}")]
    finding = f"{cert} is of the federation {named!r}, not of {federation!r}"
    return [Check("federation", "fail", finding, f"Give --federation {named}, or the files of the other federation")]


def _is_refused(transport: MqttTransport, topic: str) -> bool | None:
    """Whether the broker refuses an empty message to ``topic``; None without an answer."""
    before = transport.refusals
    with _without_warnings():
        transport.publish(topic, b"")
        answered = transport.drain(SECONDS)
    return transport.refusals > before if answered else None


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide the transport's warning of a refusal, which is the expected answer."""
    log = logging.getLogger(MqttTransport.__module__)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
