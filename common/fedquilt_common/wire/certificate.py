"""Read a certificate without a library, and name who this machine is at the broker.

Boards have no library for certificates, and Python has no public function for it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Final

from fedquilt_common.wire.broker_url import BrokerAddress

AUTHORITY: Final = "fedquilt "
"""The common name of a federation's authority begins with this; the federation's name follows."""


@dataclass(frozen=True)
class Certificate:
    """What is read of a certificate.

    Attributes:
        name: the subject's common name; empty: it has none.
        issuer: the common name of the authority that issued it; empty: it has none.
        end: the last second at which the certificate is valid, in seconds since 1970.
    """

    name: str
    issuer: str
    end: float

    @property
    def federation(self) -> str:
        """The federation whose authority issued it; empty if another authority did."""
        return self.issuer.removeprefix(AUTHORITY) if self.issuer.startswith(AUTHORITY) else ""


def read_certificate(path: str) -> Certificate | None:
    """Read a certificate file (PEM).

    It uses a function of CPython's private module ``_ssl``, the only one in Python that decodes a certificate file.
    Other interpreters and later versions may not have it. It is used here only, and no connection depends on it.

    Returns:
        The certificate; None if this Python cannot decode it.

    Raises:
        OSError: the file cannot be read, or is not a certificate (``ssl.SSLError``).
    """
    decode: Any = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    if decode is None:
        return None
    try:
        fields = decode(path)
        end = float(ssl.cert_time_to_seconds(fields["notAfter"]))
        return Certificate(_common_name(fields["subject"]), _common_name(fields["issuer"]), end)
    except (TypeError, KeyError, ValueError):  # the private function has changed
        return None


def _common_name(parts: Any) -> str:
    return str(dict(pair for part in parts for pair in part).get("commonName", ""))


def broker_user(address: BrokerAddress) -> str | None:
    """This machine's user at the broker: the certificate's common name, or the address's user.

    Returns:
        An empty text without certificate and user; None if this Python cannot read the certificate.

    Raises:
        OSError: the certificate's file cannot be read, or is not a certificate.
    """
    if not address.cert:
        return address.username
    certificate = read_certificate(address.cert)
    return None if certificate is None else certificate.name


def describe_identity(address: BrokerAddress) -> str:
    """Return how this machine connects to a broker, for a message: as which user, with which certificate."""
    try:
        user = broker_user(address)
    except OSError:  # the file was replaced since
        user = None
    found = [f"as the user {user!r}"] if user else []
    found += [f"with the certificate {address.cert}"] if address.cert else []
    return " ".join(found) or "without user and certificate"
