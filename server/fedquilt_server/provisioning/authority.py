"""Issue the X.509 certificates of a federation: its authority, its broker and boards, and the revocation list.

All signatures are ECDSA on P-256 with SHA-256, which a Raspberry Pi verifies in a millisecond.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedquilt_common.errors import FederationError
from fedquilt_common.wire.certificate import AUTHORITY
from fedquilt_common.wire.tls import NOT_BEFORE

AUTHORITY_DAYS: Final = 20 * 365
_KEY_FORMAT: Final = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@dataclass(frozen=True)
class Identity:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def serial(self) -> str:
        """The serial number of the certificate, in hexadecimal."""
        return f"{self.certificate.serial_number:x}"

    @property
    def until(self) -> datetime:
        """The end of the certificate's validity, with a time zone."""
        return expiry(self.certificate)

    @property
    def certificate_pem(self) -> str:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    @property
    def key_pem(self) -> str:
        """The key in PEM, as PKCS #8 without a password: a broker and a board start without a user."""
        return self.key.private_bytes(*_KEY_FORMAT).decode("ascii")


def make_authority(federation: str, now: datetime) -> Identity:
    """Make a certificate authority, valid for 20 years.

    It can sign certificates and revocation lists, but no further authorities.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name(AUTHORITY + federation)
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    builder = _certificate_builder(name, name, key, now + timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return Identity(builder.sign(key, hashes.SHA256()), key)


def issue_certificate(authority: Identity, name: str, until: datetime, hosts: Sequence[str] = ()) -> Identity:
    """Issue a certificate with the common name ``name``.

    Args:
        authority: who signs it.
        name: the MQTT user; any name for a broker, whose clients read ``hosts``.
        until: end of its validity; at most that of the authority.
        hosts: for a broker, its names and addresses. Without them, the certificate is for a client of the broker.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    role = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _certificate_builder(
        _common_name(name), authority.certificate.subject, key, min(until, expiry(authority.certificate))
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([role]), critical=False)
    builder = builder.add_extension(_authority_key_id(authority), critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternative_names(hosts)), critical=False)
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def revocation_list(authority: Identity, withdrawn: Mapping[int, datetime], now: datetime) -> str:
    """Return the signed list of revoked certificates in PEM.

    The list is valid as long as the authority, because a broker with an expired list rejects every client.

    Args:
        authority: who signs it.
        withdrawn: the time of each revocation by serial number.
        now: time of the list.
    """
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.certificate.subject)
    builder = builder.last_update(now).next_update(expiry(authority.certificate))
    for serial, at in withdrawn.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        builder = builder.add_revoked_certificate(entry)
    builder = builder.add_extension(x509.CRLNumber(len(withdrawn)), critical=False)
    builder = builder.add_extension(_authority_key_id(authority), critical=False)
    signed = builder.sign(authority.key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode("ascii")


def load_identity(certificate: str, key: str, where: str) -> Identity:
    """Load an identity from PEM texts.

    Args:
        certificate: the certificate in PEM.
        key: its private key in PEM.
        where: the folder, for error messages.

    Raises:
        FederationError: the texts are not a certificate and its key.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate.encode())
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError) as error:
        raise FederationError(
            f"{where}: cannot read the certificate and its key ({error}); restore both from a backup"
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != loaded.public_key():
        raise FederationError(f"{where}: the key does not belong to the certificate; restore both from a backup")
    return Identity(loaded, private)


def certificate_serial(path: Path) -> str:
    """Return the serial number of a certificate's file, in hexadecimal; empty if it holds none."""
    try:
        return f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:x}"
    except (FileNotFoundError, ValueError):
        return ""


def expiry(certificate: x509.Certificate) -> datetime:
    """Return the end of its validity, with a time zone. Older versions of cryptography lack ``not_valid_after_utc``."""
    after: datetime = getattr(certificate, "not_valid_after_utc", None) or certificate.not_valid_after.replace(
        tzinfo=timezone.utc
    )
    return after


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(NOT_BEFORE).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _authority_key_id(authority: Identity) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())


def _common_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature, False, False, False, False, key_cert_sign, crl_sign, False, False
    )  # fmt: skip


def _alternative_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    return [_alternative_name(host) for host in hosts]


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
