"""Read the files of TLS (PEM) into a context, and name the file and the cause if one cannot be used."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NoReturn

_DER: Final = b"\x30"
"""First byte of a certificate or a key in DER form: an ASN.1 sequence."""
_OPTIONS: Final = "Check --ca, --cert and --key"


class TlsFileError(Exception):
    """A file of TLS cannot be used. The text has the file, the cause and what to do."""


def trust_authorities(path: str) -> ssl.SSLContext:
    """Return a client's context that trusts the certificates of a file; those of the system if ``path`` is empty.

    Raises:
        TlsFileError: the file cannot be used.
    """
    if path:
        _require_pem(path, b"CERTIFICATE", "certificate", "x509")
    try:
        return ssl.create_default_context(cafile=path or None)
    except ssl.SSLError as error:
        raise _damaged(path, error) from None


def load_own_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Load a certificate and its key; nothing asks for the passphrase of a key.

    Args:
        context: what the certificate identifies.
        cert: the certificate's file.
        key: the key's file; empty: the key is in the certificate's file.

    Raises:
        TlsFileError: a file cannot be used.
    """
    _require_pem(cert, b"CERTIFICATE", "certificate", "x509")
    trust_authorities(cert)  # the error of a chain does not name the file
    path = key or cert
    _require_pem(path, b"PRIVATE KEY", "key", "pkey")

    def refuse_passphrase() -> NoReturn:
        advice = f"write the key without one: `openssl pkey -in {path} -out FILE`"
        raise TlsFileError(f"{path} has a passphrase, and a program that starts by itself cannot give it; {advice}")

    try:
        context.load_cert_chain(cert, path, refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError(f"{path} does not belong to the certificate {cert}. {_OPTIONS}") from None
        raise _damaged(path, error) from None


def _require_pem(path: str, label: bytes, noun: str, command: str) -> None:
    """Check that a file has a PEM block.

    Args:
        path: the file.
        label: the end of the label in the block's first line.
        noun: what the block holds, for a message.
        command: the command of openssl that converts it.

    Raises:
        TlsFileError: it has none, or cannot be read.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}. {_OPTIONS}") from None
    if not content.strip():
        raise TlsFileError(f"{path} is empty: write it again. {_OPTIONS}")
    if label + b"-----" in content:
        return
    if content.startswith(_DER):
        convert = f"convert it: `openssl {command} -inform der -in {path} -out FILE`"
        raise TlsFileError(f"{path} is in DER form, not in PEM; {convert}")
    raise TlsFileError(f"{path} holds no {noun} in PEM. {_OPTIONS}")


def _damaged(path: str, error: ssl.SSLError) -> TlsFileError:
    return TlsFileError(
        f"{path} is damaged, or OpenSSL does not accept it ({error.reason}): write it again. {_OPTIONS}"
    )
