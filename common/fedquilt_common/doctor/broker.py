"""The way to the broker, step by step: each needs the one before, so that the first that fails is the cause."""

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

from fedquilt_common.doctor.check import Check, graded
from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt import MqttTransport, tls_context
from fedquilt_common.wire.topics import COORDINATOR, RESERVED, Topics
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming

CHUNK: Final = 256 * 1024
"""The default of ``wire.chunk``."""
SECONDS: Final = 10.0
PROBE: Final = "doctor-probe"
"""An agent that there is not: whoever may write to its inbox may write to anybody's."""
_DAY: Final = 86_400.0
WARN_DAYS: Final = 30.0
"""A certificate that ends within it should be renewed."""
_FAIL_DAYS: Final = 0.0


def broker_checks(address: BrokerAddress, federation: str) -> list[Check]:
    """Reachable, TLS and its dates, what the broker says, largest packet, ACL."""
    try:
        with socket.create_connection((address.host, address.port), timeout=SECONDS):
            found = [Check("broker", "ok", f"something answers at {address}")]
    except OSError as error:
        advice = "Check that the broker runs, its name or address, the port, the network cable or Wi-Fi, and firewalls"
        return [Check("broker", "fail", f"nothing answers at {address}: {error}", advice)]
    if address.tls:
        found += _tls(address)
    if any(check.state == "fail" for check in found):
        return found
    return [*found, *_mqtt(address, federation)]


def _tls(address: BrokerAddress) -> list[Check]:
    try:
        context = tls_context(address)
    except FedquiltError as error:
        return [Check("TLS files", "fail", str(error), "Provision the board anew, or correct its agent.yaml")]
    found = [_days("own certificate", cert_end(address.cert))] if address.cert else []
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=address.host) as secure,
        ):
            seen: Any = secure.getpeercert()
    except ssl.SSLCertVerificationError as error:
        return [*found, Check("TLS", "fail", f"the broker's certificate: {error.verify_message}", _trust(error))]
    except OSError as error:
        return [*found, Check("TLS", "fail", f"no TLS connection: {error}", "Is the port the one for TLS (8883)?")]
    return [*found, _days("broker's certificate", ssl.cert_time_to_seconds(seen["notAfter"]))]


def _trust(error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return "Look at this machine's clock first (`date`), then at the certificate: `fedquilt federation renew`"
    if "match" in error.verify_message:
        return "The broker has another name: `fedquilt federation renew --broker NAME`, or use a name that it has"
    return "This is not the broker of this federation, or --ca is that of another one"


def cert_end(path: str) -> float:
    """The last second at which a certificate is good (seconds since 1970). Raises OSError."""
    decode: Any = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009 - Python has no public way, boards no library
    return float(ssl.cert_time_to_seconds(decode(path)["notAfter"]))


def _days(name: str, end: float) -> Check:
    days = (end - time.time()) / _DAY
    said = f"good for {days:.0f} more days" if days >= 0 else f"ran out {-days:.0f} days ago (by this machine's clock)"
    advice = "Renew it: `fedquilt provision BOARD --renew` or `fedquilt federation renew`; check the clock (`date`)"
    return graded(name, days, WARN_DAYS, _FAIL_DAYS, said, advice)


@dataclass
class _Visit:
    """A connection of the doctor's own; the agent's or coordinator's is not disturbed."""

    address: BrokerAddress
    told: list[Incoming] = field(default_factory=list)
    event: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def open(self) -> Iterator[MqttTransport]:
        name = f"fedquilt-doctor-{secrets.token_hex(4)}"
        transport = MqttTransport(self.address, name, self._deliver, session_expiry=0)
        transport.connect()
        try:
            self.event.wait(SECONDS)
            yield transport
        finally:
            transport.close()

    def _deliver(self, incoming: Incoming) -> None:
        if isinstance(incoming, Connected | Disconnected):
            self.told.append(incoming)
            self.event.set()


def _mqtt(address: BrokerAddress, federation: str) -> list[Check]:
    visit = _Visit(address)
    try:
        with visit.open() as transport:
            if not visit.told or isinstance(visit.told[0], Disconnected):
                return [_refused(visit.told[0] if visit.told else None, address)]
            return [
                Check("MQTT", "ok", "the broker speaks MQTT 5 and lets us in"),
                _packets(transport.max_payload),
                *_rights(transport, address, federation),
            ]
    except FedquiltError as error:
        return [Check("MQTT", "fail", str(error))]


def _refused(said: Incoming | None, address: BrokerAddress) -> Check:
    reason = said.reason if isinstance(said, Disconnected) else f"no word from {address} in {SECONDS:.0f} seconds"
    advice = "Is this board's certificate revoked, or of another federation? `fedquilt boards` tells on the workstation"
    if isinstance(said, Disconnected) and said.refused:
        advice = said.advice
    elif not address.tls:
        advice = "Does this broker want TLS (mqtts://) or a password (FEDQUILT_BROKER_PASSWORD)? Does it speak MQTT 5?"
    return Check("MQTT", "fail", reason, advice)


def _packets(most: int) -> Check:
    said = f"the broker takes payloads of up to {most / 1024:.0f} KiB"
    advice = f"Set wire.chunk to less than {most} bytes, or raise the broker's max_packet_size"
    return graded("largest packet", most, CHUNK, 1024, said, advice)


def _rights(transport: MqttTransport, address: BrokerAddress, federation: str) -> list[Check]:
    """What we may write; an answer to the first question must not be taken for one to the second."""
    refused = _is_refused(transport, Topics(federation).inbox(PROBE))
    if refused is None:
        return [_unanswered("ACL")]
    return [_acl(refused, address), *_own_topics(transport, address, federation)]


def _unanswered(name: str) -> Check:
    return Check(name, "warn", f"no answer in {SECONDS:.0f} seconds", "The link is slow, or the broker busy; try again")


def _acl(refused: bool, address: BrokerAddress) -> Check:
    """``refused``: a message was, to where no agent may write, and where nobody reads."""
    if refused:
        return Check("ACL", "ok", "the broker refused a message to another's topic")
    if cert_user(address) == COORDINATOR:
        return Check("ACL", "ok", "not tried: the coordinator may write everything")
    advice = "Use the federation's ACL (`fedquilt federation init`), or keep the broker away from networks of others"
    return Check("ACL", "fail" if address.tls else "warn", "anybody here may write as anybody else", advice)


def _own_topics(transport: MqttTransport, address: BrokerAddress, federation: str) -> list[Check]:
    """Whether a board may speak in this federation. An empty message is one that the coordinator passes over."""
    user = cert_user(address)
    if not user or user in RESERVED:
        return []
    refused = _is_refused(transport, Topics(federation).telemetry(user))
    if refused is None:
        return [_unanswered("federation")]
    if not refused:
        return [Check("federation", "ok", f"{user} may speak in {federation!r}")]
    advice = "Is its name right? `fedquilt federation init` gave it, agent.yaml and --federation repeat it"
    return [Check("federation", "fail", f"{user} may not speak in the federation {federation!r}", advice)]


def _is_refused(transport: MqttTransport, topic: str) -> bool | None:
    """Whether the broker refuses an empty message there; None without an answer."""
    before = transport.refusals
    with _quiet():
        transport.publish(topic, b"")
        answered = transport.drain(SECONDS)
    return transport.refusals > before if answered else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The transport would warn of the refusal that is hoped for."""
    log = logging.getLogger("fedquilt_common.wire.transport")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def cert_user(address: BrokerAddress) -> str:
    """Who we are at the broker: the certificate's common name, or the user of the address."""
    if not address.cert:
        return address.username
    decode: Any = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009 - as above
    subject = [pair for part in decode(address.cert)["subject"] for pair in part]
    return str(dict(subject).get("commonName", ""))
