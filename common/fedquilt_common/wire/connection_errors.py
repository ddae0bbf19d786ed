"""Why there is no connection to the broker, in words for people, and what they can do."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.mqtt_limits import SMALLEST_PACKET
from fedquilt_common.wire.tls import explain_tls_error
from fedquilt_common.wire.transport import Crashed, Disconnected

_OWN_CERTIFICATE: Final = (
    "The broker may refuse this machine's certificate: revoked, or of another federation. Run `fedquilt doctor`"
)
_CREDENTIALS: Final = "Check the user, the password (FEDQUILT_BROKER_PASSWORD) and the certificates"
_CLOSED: Final = "It may restart. If this repeats, look at its log"
_NO_FAREWELL: Final = "Unspecified error"
"""paho's name for a connection that ended without a DISCONNECT packet."""


def explain_refusal(address: BrokerAddress, code: str) -> Disconnected:
    """Explain that the broker answered the client with ``code`` instead of accepting it."""
    return Disconnected(f"{address} refused the connection: {code}", refused=True, advice=_CREDENTIALS)


def explain_small_packets(address: BrokerAddress, largest: int) -> Disconnected:
    """Explain that the broker's largest packet, in bytes, is too small for control messages."""
    advice = f"Raise the broker's max_packet_size to {SMALLEST_PACKET} or more"
    return Disconnected(f"{address} accepts packets of at most {largest} bytes", refused=True, advice=advice)


def explain_failed_attempt(address: BrokerAddress, error: BaseException | None) -> Disconnected:
    """Explain why no connection could be opened."""
    return explain_tls_error(address, error) or Disconnected(f"no MQTT broker answers at {address}: {error}")


def explain_loss(address: BrokerAddress, code: str, was_accepted: bool, tls_error: ssl.SSLError | None) -> Disconnected:
    """Explain the end of a connection, which the broker had accepted or not.

    Args:
        address: the broker.
        code: the reason code in paho's words.
        was_accepted: whether the broker had accepted the client.
        tls_error: what TLS raised; None for another reason.
    """
    if not was_accepted:
        lost = Disconnected(f"{address} closed the connection before it accepted the client: {code}")
        lost = replace(lost, advice=_OWN_CERTIFICATE) if address.tls else lost
        return explain_tls_error(address, tls_error) or lost
    if code == _NO_FAREWELL:
        return Disconnected(f"connection to {address} lost: the broker closed it", advice=_CLOSED)
    return Disconnected(f"connection to {address} lost: {code}")


def explain_crash(address: BrokerAddress, error: Exception) -> Crashed:
    """Explain an unforeseen error of the network thread."""
    failure = FedquiltError(
        f"the connection to {address} ended because of an unforeseen error: {error!r}. "
        "Report the defect with the log. To resume, run the same command again"
    )
    failure.__cause__ = error
    return Crashed(failure)
