"""Why there is no connection to the broker, in words for people, and what they can do."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress
from fedquilt_common.wire.certificate import describe_identity
from fedquilt_common.wire.mqtt_limits import ACCEPT_SECONDS, SMALLEST_PACKET
from fedquilt_common.wire.tls import explain_tls_error
from fedquilt_common.wire.transport import Crashed, Disconnected, PublicationRefused

_OWN_CERTIFICATE: Final = (
    "The broker may refuse this machine's certificate. Check that it is not revoked and is of this federation: "
    "`fedquilt boards` on the workstation lists them"
)
NO_ANSWER: Final = (
    "Check that the broker speaks MQTT 5 and accepts further connections (Mosquitto's max_connections), and look at "
    "its log"
)
"""What to do about a broker that neither accepts nor refuses the client."""
_CLOSED: Final = "It may restart. If this repeats, look at its log"
_BRIEF: Final = (
    "It has ended several connections soon after it accepted them. Another process may use a copy of this one's state "
    "or run folder, or a message may be larger than the broker allows (Mosquitto's message_size_limit). Look at its log"
)
_KEEPALIVE_ENDED: Final = 0x8D
"""The reason code with which paho ends a connection to a broker that has been silent for too long."""
NO_FAREWELL: Final = 0x80
"""The reason code with which paho reports a connection that ended without a DISCONNECT packet."""
_OTHER_VERSION: Final = "Use a broker that speaks MQTT 5, such as Mosquitto 2"
_OTHER_BROKER: Final = (
    "Write the address of the broker that serves this client now; the refusing broker's log may name it"
)
_LATER: Final = "The broker is overloaded or not ready yet. If this repeats, look at its log"
_FINAL: Final = {
    0x84: _OTHER_VERSION,
    0x85: "Let the broker accept client identifiers that begin with `fedquilt-` and have up to 171 characters",
    0x8A: "The broker has banned this client. Look at its log and its configuration",
    0x8C: "Let the broker accept a user with a password, or a certificate: fedquilt has no other way to authenticate",
    0x95: f"Raise the broker's max_packet_size to {SMALLEST_PACKET} or more",
    0x9A: "Let the broker keep retained messages (Mosquitto's retain_available): boards learn the round from them",
    0x9B: "Let the broker accept messages of QoS 1 (Mosquitto's max_qos): fedquilt repeats what is lost",
    0x9C: _OTHER_BROKER,
    0x9D: _OTHER_BROKER,
}
"""What to do by the reason code of a CONNACK (MQTT 5, section 3.2.2.2) that another attempt would only repeat."""
_ENDINGS: Final = {
    0x8B: _CLOSED,
    0x8E: "Another process connects with a copy of this one's state or run folder. End one of the two",
    0x95: _FINAL[0x95],
    0x98: "Somebody has ended it at the broker",
}
"""What to do by the reason code of a DISCONNECT (MQTT 5, section 3.14.2.1)."""
_CREDENTIALS: Final = frozenset({0x86, 0x87})
"""Reason codes: bad user or password, and not authorised, which Mosquitto sends for a bad password, too."""
_TEMPORARY: Final = frozenset({0x88, 0x89, 0x97, 0x9F})
"""Reason codes: server unavailable, server busy, quota exceeded, connection rate exceeded."""


def explain_answer(address: BrokerAddress, code: int, name: str) -> Disconnected:
    """Explain a CONNACK with which the broker does not accept the client.

    Args:
        address: the broker, and how this client authenticates.
        code: the reason code.
        name: the code in words.
    """
    reason = f"{address} refused the connection: {name}"
    if code in _TEMPORARY:
        return Disconnected(reason, advice=_LATER)
    advice = _advise_on_credentials(address) if code in _CREDENTIALS else _FINAL.get(code, "Look at the broker's log")
    return Disconnected(reason, refused=True, advice=advice)


def _advise_on_credentials(address: BrokerAddress) -> str:
    """Return advice on how to correct the client's credentials."""
    if address.cert and not address.username:
        return f"Check that the broker knows the user of the certificate {address.cert}: its ACL names all users"
    if not address.username:
        url = f"{replace(address, username='USER').without_password()}"
        return f"Give a user in the broker's address ({url}), and its password in {BROKER_PASSWORD}"
    if not address.password:
        return f"Give the password of the user {address.username!r} in {BROKER_PASSWORD}"
    return (
        f"Correct the user {address.username!r} in the broker's address, or the password ({BROKER_PASSWORD}), and "
        "start this command again. Or give the user this password at the broker"
    )


def explain_limits(address: BrokerAddress, largest: int, qos: int, *, retains: bool) -> Disconnected | None:
    """Explain which limit of a broker that accepts the client is too low for fedquilt; None if none is.

    Args:
        address: the broker.
        largest: bytes of its largest packet.
        qos: its highest quality of service.
        retains: whether it keeps retained messages.
    """
    if largest < SMALLEST_PACKET:
        return Disconnected(f"{address} accepts packets of at most {largest} bytes", refused=True, advice=_FINAL[0x95])
    if not retains:
        return Disconnected(f"{address} keeps no retained messages", refused=True, advice=_FINAL[0x9A])
    if not qos:
        return Disconnected(f"{address} accepts messages of QoS 0 only", refused=True, advice=_FINAL[0x9B])
    return None


def explain_other_protocol(address: BrokerAddress) -> Disconnected:
    """Explain that the port speaks TLS although the address does not, or the other way round."""
    other = replace(address, tls=not address.tls)
    if address.tls:
        advice = f"Write the broker's port for TLS, usually 8883. Or write {other}, without --ca, --cert and --key: it "
        return Disconnected(f"{address} does not use TLS", refused=True, advice=f"{advice}encrypts nothing")
    advice = f"Write {other}, and name the broker's CA with --ca unless this system has it"
    return Disconnected(f"{address} requires TLS", refused=True, advice=advice)


def explain_failed_attempt(address: BrokerAddress, error: BaseException | None) -> Disconnected:
    """Explain why no connection could be opened."""
    return explain_tls_error(address, error) or Disconnected(f"no MQTT broker answers at {address}: {error}")


def explain_loss(
    address: BrokerAddress,
    code: int,
    name: str,
    *,
    was_accepted: bool,
    tls_error: ssl.SSLError | None,
    repeated: bool = False,
) -> Disconnected:
    """Explain the end of a connection, which the broker had accepted or not.

    Args:
        address: the broker.
        code: the reason code of the broker's DISCONNECT, or ``NO_FAREWELL``.
        name: the code in words.
        was_accepted: whether the broker had accepted the client.
        tls_error: what TLS raised; None for another reason.
        repeated: several connections in a row have ended soon after the broker had accepted them.
    """
    if not was_accepted and code == _KEEPALIVE_ENDED:
        reason = f"{address} accepts connections, but nothing there has answered for {ACCEPT_SECONDS} seconds"
        return Disconnected(reason, advice=NO_ANSWER)
    if not was_accepted:
        advice = _OWN_CERTIFICATE if address.tls else NO_ANSWER
        lost = Disconnected(f"{address} closed the connection before it accepted the client: {name}", advice=advice)
        return explain_tls_error(address, tls_error) or lost
    if code == NO_FAREWELL:
        advice = _BRIEF if repeated else _CLOSED
        return Disconnected(f"connection to {address} lost: the broker closed it", advice=advice)
    lost = Disconnected(f"connection to {address} lost: {name}")
    other = _BRIEF if repeated else lost.advice
    advice = _advise_on_credentials(address) if code in _CREDENTIALS else _ENDINGS.get(code, other)
    return replace(lost, advice=advice)


def explain_crash(address: BrokerAddress, error: Exception) -> Crashed:
    """Explain an unforeseen error of the network thread."""
    failure = FedquiltError(
        f"the connection to {address} ended because of an unforeseen error: {error!r}. "
        "Report the defect with the log. To resume, run the same command again"
    )
    failure.__cause__ = error
    return Crashed(failure)


def explain_refused_presence(refused: PublicationRefused, who: str, check: str) -> str:
    """Explain that the broker's ACL does not let this user write the presence of an agent or a coordinator.

    Args:
        refused: what the broker refused.
        who: the program, such as ``agent``.
        check: the options to check, with their values.
    """
    return (
        f"{refused.address} refused the {who}'s presence on {refused.topic}: {refused.reason}. The {who} connects "
        f"{describe_identity(refused.address)}. Check {check}, and the broker's ACL"
    )
