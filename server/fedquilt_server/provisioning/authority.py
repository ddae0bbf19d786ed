"""X.509: the certificate authority of a federation, the certificates of its broker and boards, what is withdrawn.

Everything is signed with ECDSA on P-256 and SHA-256, which a Raspberry Pi verifies in a millisecond.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedquilt_common.errors import FederationError

NOT_BEFORE: Final = datetime(2024, 1, 1, tzinfo=timezone.utc)
"""Of every certificate: a board without a clock battery wakes up in the past, and must reach its broker even so."""
AUTHORITY_DAYS: Final = 20 * 365
_AS_KEY: Final = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    @property
    def key_pem(self) -> str:
        """PKCS #8 without a password, since a broker and a board start without anybody there."""
        return self.key.private_bytes(*_AS_KEY).decode("ascii")


def make_authority(federation: str, now: datetime) -> Identity:
    """A new one, valid for 20 years; it signs certificates and revocation lists, no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"fedquilt {federation}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = _builder(name, name, key, now + timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return Identity(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Identity, name: str, until: datetime, hosts: Sequence[str] = ()) -> Identity:
    """A certificate with the common name ``name``: of a broker that is known as ``hosts`` (names or addresses), or, if
    there are none, of somebody who connects to it."""
    key = ec.generate_private_key(ec.SECP256R1())
    role = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(_name(name), authority.certificate.subject, key, min(until, expiry(authority.certificate)))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([role]), critical=False)
    builder = builder.add_extension(_signed_by(authority), critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def revocation_list(authority: Identity, withdrawn: Mapping[int, datetime], now: datetime) -> str:
    """The serial numbers that no longer count, with the time of each, in PEM. As good as the authority itself lasts:
    a broker with a list that has run out turns everybody away."""
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.certificate.subject)
    builder = builder.last_update(now).next_update(expiry(authority.certificate))
    for serial, at in withdrawn.items():
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        builder = builder.add_revoked_certificate(one)
    builder = builder.add_extension(x509.CRLNumber(len(withdrawn)), critical=False)
    builder = builder.add_extension(_signed_by(authority), critical=False)
    signed = builder.sign(authority.key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode("ascii")


def load_identity(certificate: str, key: str, where: str) -> Identity:
    """From PEM texts; ``where`` is named in the error. Raises FederationError."""
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError) as error:
        raise FederationError(f"{where}: is no certificate with a key of its own ({error})") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != found.public_key():
        raise FederationError(f"{where}: the key is not that of the certificate; restore both from a backup")
    return Identity(found, private)


def expiry(certificate: x509.Certificate) -> datetime:
    """The last moment at which it is good, with a time zone (``not_valid_after_utc`` is not in older versions)."""
    after: datetime = getattr(certificate, "not_valid_after_utc", None) or certificate.not_valid_after.replace(
        tzinfo=timezone.utc
    )
    return after


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(NOT_BEFORE).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _signed_by(authority: Identity) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature, False, False, False, False, key_cert_sign, crl_sign, False, False
    )  # fmt: skip


def _alternatives(hosts: Iterable[str]) -> list[x509.GeneralName]:
    return [_alternative(host) for host in hosts]


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
