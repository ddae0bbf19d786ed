"""Keys of one summed exchange: agreement between pairs, sealed messages, and shares of secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

from fedquilt_common.errors import PayloadError
from fedquilt_common.secure_aggregation.packages import ciphers, shamir

SECRET_BYTES: Final = 16
"""Size of a secret from which keys follow: 128 bits, which pycryptodome can split into shares."""
KEY_BYTES: Final = 32
_NONCE: Final = 12
SEALED_BYTES: Final = _NONCE + 2 * SECRET_BYTES + 16
"""Size of a sealed message with two shares for one peer: nonce, both shares, and the tag that shows damage."""
Purpose = Literal["cipher", "mask"]


def new_secret() -> bytes:
    """Return a secret that nobody can predict."""
    return os.urandom(SECRET_BYTES)


def derive_key(secret: bytes, purpose: str) -> bytes:
    """Return 32 bytes that follow from a secret; different purposes give independent ones (HKDF, RFC 5869)."""
    ciphers()  # says which package is missing
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=f"fedquilt {purpose}".encode()).derive(secret)


def commitment(secret: bytes) -> bytes:
    """Return 32 bytes that bind a client to a secret without revealing it."""
    return derive_key(secret, "commitment")


def public_key(secret: bytes, purpose: Purpose) -> bytes:
    """Return the public key, 32 bytes, of the X25519 key pair that follows from a secret."""
    ciphers()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derive_key(secret, purpose)).public_key().public_bytes_raw()


def is_public_key(key: bytes) -> bool:
    """Return whether others can agree on a key with the owner of a public key."""
    try:
        agree(bytes(SECRET_BYTES), key, "mask")
    except PayloadError:
        return False
    return True


def agree(secret: bytes, peer: bytes, purpose: Purpose) -> bytes:
    """Return the key, 32 bytes, that both ends of a pair derive.

    Args:
        secret: one's own.
        peer: public key of the other one.
        purpose: of both key pairs.

    Raises:
        PayloadError: the public key is none.
    """
    ciphers()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    private = X25519PrivateKey.from_private_bytes(derive_key(secret, purpose))
    try:
        return derive_key(private.exchange(X25519PublicKey.from_public_bytes(peer)), f"{purpose} pair")
    except ValueError:
        raise PayloadError("the public key of a client is not one of the curve X25519") from None


def seal(key: bytes, message: bytes, sender: int, receiver: int) -> bytes:
    """Return a message that only the receiver can read, and that nobody can change (ChaCha20-Poly1305)."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = os.urandom(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, message, _parties(sender, receiver))


def unseal(key: bytes, sealed: bytes, sender: int, receiver: int) -> bytes:
    """Return the message of ``seal``.

    Raises:
        PayloadError: it was changed on its way, or is for another pair.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], _parties(sender, receiver))
    except InvalidTag:
        raise PayloadError(f"the shares that client {sender} sent to client {receiver} are damaged") from None


def _parties(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return ``count`` shares of 16 bytes; any ``threshold`` of them give the secret, fewer reveal nothing (Shamir)."""
    return [share for _, share in shamir().split(threshold, count, secret)]


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from exactly ``threshold`` shares, by their positions in the result of ``split_secret``."""
    return shamir().combine([(position + 1, share) for position, share in shares.items()])
