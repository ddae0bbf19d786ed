"""Read a certificate without a library: boards have none, and Python has no public function for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Certificate:
    """What the doctor needs of a certificate.

    Attributes:
        name: the subject's common name; empty: it has none.
        end: the last second at which the certificate is valid, in seconds since 1970.
    """

    name: str
    end: float


def read_certificate(path: str) -> Certificate | None:
    """Read a certificate file (PEM).

    It uses a function of CPython's private module ``_ssl``, the only one in Python that decodes a certificate file.
    Other interpreters and later versions may not have it. It is used here only, so that just the doctor depends on it.

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
        subject = dict(pair for part in fields["subject"] for pair in part)
        return Certificate(str(subject.get("commonName", "")), float(ssl.cert_time_to_seconds(fields["notAfter"])))
    except (TypeError, KeyError, ValueError):  # the private function has changed
        return None
