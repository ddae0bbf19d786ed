"""Ask a port whether it speaks TLS or plain MQTT, after the protocol of the broker's address has failed there."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.discovery import open_connection
from fedquilt_common.wire.tls import secure_socket

ANSWER_SECONDS: Final = 2.0
"""How long the port may take for each step of its answer."""
_CONNECT: Final = bytes.fromhex("100d 0004 4d515454 05 02 003c 00 0000")
"""MQTT 5's CONNECT of a client without name, user and session, which gives nothing away."""
_CONNACK: Final = b"\x20"
_NO_TLS: Final = "WRONG_VERSION_NUMBER"
"""OpenSSL's name for an answer that is not TLS."""


def uses_other_protocol(address: BrokerAddress, error: BaseException | None = None) -> bool:
    """Return whether the port answers, but not with TLS for ``mqtts://``, or with TLS for ``mqtt://``.

    Brokers close such a connection without a word, as one does that restarts. So the port is asked in the other
    protocol, without a user or a password.

    Args:
        address: the broker, which has closed a connection before it accepted the client.
        error: what opening the connection raised; None if it was opened.
    """
    if not address.tls:
        return _speaks_tls(address)
    if isinstance(error, ssl.SSLError) and error.reason == _NO_TLS:
        return True
    return isinstance(error, ConnectionResetError | ssl.SSLEOFError) and _speaks_mqtt(address)


def _speaks_tls(address: BrokerAddress) -> bool:
    """Whether a handshake begins; whom the certificate is of does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        connection = open_connection(address.host, address.port, ANSWER_SECONDS)
        secure_socket(context, connection, address.host, ANSWER_SECONDS).close()
    except ssl.SSLError as error:
        return "_ALERT_" in (error.reason or "")  # it wants another version, or a certificate
    except OSError:
        return False
    return True


def _speaks_mqtt(address: BrokerAddress) -> bool:
    with contextlib.suppress(OSError):
        with open_connection(address.host, address.port, ANSWER_SECONDS) as connection:
            connection.sendall(_CONNECT)
            answer = connection.recv(1)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return answer == _CONNACK
    return False
