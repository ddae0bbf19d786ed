"""The packages of the extra ``secure``, imported when they are first used."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Final

from fedquilt_common.errors import PackageMissingError, how_to_install_on_boards

if TYPE_CHECKING:
    from Crypto.Protocol.SecretSharing import Shamir as Shamir
    from cryptography.hazmat.primitives.ciphers import Cipher

_MISSING: Final = (
    f"secure aggregation needs the packages cryptography and pycryptodome: {how_to_install_on_boards('secure')}"
)


def check_packages() -> None:
    """Raise ``PackageMissingError`` if a package of the extra is not installed."""
    ciphers()
    shamir()


def ciphers() -> tuple[ModuleType, type[Cipher[None]]]:
    """Return the module of stream ciphers, and the class that runs them.

    Raises:
        PackageMissingError: cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        raise PackageMissingError(_MISSING) from None
    return algorithms, Cipher


def shamir() -> type[Shamir]:
    """Return the class that splits secrets into shares.

    Raises:
        PackageMissingError: pycryptodome is not installed.
    """
    try:
        from Crypto.Protocol.SecretSharing import Shamir
    except ImportError:
        raise PackageMissingError(_MISSING) from None
    return Shamir
