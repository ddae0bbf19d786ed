"""The TLS settings of a connection to the broker, and what an error of TLS means.

With TLS 1.3, the alert of a broker that refuses this machine's certificate arrives after the handshake: the client has
connected, and its connection is lost at once. With TLS 1.2, the alert ends the handshake.
"""

from __future__ import annotations

import logging
import socket
import ssl
from datetime import datetime, timezone
from typing import Final

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.tls_files import TlsFileError, load_own_certificate, trust_authorities
from fedquilt_common.wire.transport import Disconnected

log = logging.getLogger(__name__)

TLS_1_2_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Cipher suites for TLS 1.2, as in broker/mosquitto-tls.conf; all suites of TLS 1.3 are allowed."""
NOT_BEFORE: Final = datetime(2024, 1, 1, tzinfo=timezone.utc)
"""Start of every certificate. A board without a clock battery starts with an old date and must still connect."""
_TRUST: Final = "Check the CA, the broker's name and this machine's clock, or run `fedquilt doctor`"
_RENEW: Final = (
    "For a board, run `fedquilt provision NAME --renew` on the workstation, and write a new card or install its new "
    "files with Ansible. A running agent uses new files in the place of its own at its next attempt. For a "
    "coordinator, `watch` or Home Assistant, copy the newest files of the federation's folder; if those have expired, "
    "run `fedquilt federation renew` first. "
    "For the relay of a site, run `fedquilt federation broker --site SITE --relay --renew`, and copy the site's new "
    "files"
)
_REFUSALS: Final = {
    "CERTIFICATE_REVOKED": ("it is revoked", _RENEW),
    "CERTIFICATE_EXPIRED": (
        "it has expired by the broker's clock", f"Check the clock of the broker's machine (`date`). {_RENEW}",
    ),
    "BAD_CERTIFICATE": (
        "it is damaged, or not valid yet by the broker's clock",
        f"Check the clock of the broker's machine (`date`). {_RENEW}",
    ),
    "UNKNOWN_CA": (
        "another authority has issued it", "Use the files that `fedquilt provision` wrote in this broker's federation",
    ),
    "CERTIFICATE_REQUIRED": (
        "none was given",
        "Give it with --cert and --key: for a board, or in its agent.yaml, the files that `fedquilt provision` wrote; "
        "for the coordinator those in federation/coordinator, and for `fedquilt watch` those in federation/watch",
    ),
    "UNSUPPORTED_CERTIFICATE": ("it is not a client's certificate", _RENEW),
}  # fmt: skip
"""Reason and advice by the alert's name (RFC 8446, section 6), with which OpenSSL's name of the error ends."""


def tls_context(address: BrokerAddress) -> ssl.SSLContext:
    """Create a TLS context with the address's files, for TLS 1.2 with ``TLS_1_2_CIPHERS`` or TLS 1.3.

    Raises:
        ExperimentError: a file is missing or invalid.
    """
    try:
        context = trust_authorities(address.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(TLS_1_2_CIPHERS)
        if address.cert:
            load_own_certificate(context, address.cert, address.key)
    except TlsFileError as error:
        raise ExperimentError(f"the TLS files for {address} cannot be used: {error}") from None
    return context


class TlsContext:
    """The TLS context of each connection: somebody may replace a certificate while the program runs.

    Args:
        address: names the files.

    Attributes:
        context: with the last valid files.

    Raises:
        ExperimentError: a file is missing or invalid.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self.context = tls_context(address)
        self._reported = ""

    def read_again(self) -> ssl.SSLContext:
        """Return a context with the files as they are now; the last valid one if they cannot be used.

        The last one is never changed: certificate and key are replaced one after the other, and may not match between.
        """
        try:
            self.context = tls_context(self._address)
            self._reported = ""
        except ExperimentError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.warning("%s. The files that were read before remain in use", error)
        return self.context


def secure_socket(context: ssl.SSLContext, connection: socket.socket, host: str, seconds: float) -> ssl.SSLSocket:
    """Return a connection with TLS. paho's own method leaves the socket open if the handshake fails.

    Args:
        context: decides which certificates are valid.
        connection: a connected socket, which then belongs to the result.
        host: the broker's name, which its certificate must hold.
        seconds: for each step of the handshake.

    Raises:
        OSError: the handshake fails; ``ssl.SSLError`` if one side rejects the other.
    """
    secured = context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
    try:
        secured.settimeout(seconds)
        secured.do_handshake()
    except BaseException:
        secured.close()
        raise
    return secured


def explain_tls_error(address: BrokerAddress, error: BaseException | None) -> Disconnected | None:
    """Return what to report if one side rejects the certificate of the other; None for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"certificate verify failed for the broker at {address}: {error.verify_message.rstrip('.')}"
        return Disconnected(reason, refused=True, advice=_TRUST)
    if not isinstance(error, ssl.SSLError):
        return None
    _, _, alert = (error.reason or "").partition("_ALERT_")
    if alert not in _REFUSALS:
        return None
    reason, advice = _REFUSALS[alert]
    return Disconnected(f"{address} refused this machine's certificate: {reason}", refused=True, advice=advice)
