"""Digests of content: XXH3 for what a run sends and stores, SHA-256 for what comes from elsewhere.

XXH3 detects accidents, as on a damaged disk, and takes less than a tenth of the time of SHA-256. Only SHA-256 resists
somebody who looks for two contents with the same digest. The length of a digest identifies its algorithm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final, Literal, Protocol

from xxhash import xxh3_128

DigestKind = Literal["xxh3", "sha256"]
_XXH3_DIGITS: Final = 32
_READ: Final = 1 << 20


class Hash(Protocol):
    """Computes a digest from pieces of the content, in their order."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """Add a piece."""

    def hexdigest(self) -> str:
        """Return the digest of all pieces so far, in hex."""


_HASHES: Final[Mapping[DigestKind, Callable[[], Hash]]] = {"xxh3": xxh3_128, "sha256": hashlib.sha256}


def new_hash(kind: DigestKind) -> Hash:
    """Return a hash without content."""
    return _HASHES[kind]()


def kind_of(digest: str) -> DigestKind:
    """Return which hash made a digest, by its length."""
    return "xxh3" if len(digest) == _XXH3_DIGITS else "sha256"


def digest_bytes(content: bytes | bytearray | memoryview, kind: DigestKind) -> str:
    """Return the digest of bytes in memory, in hex."""
    found = new_hash(kind)
    found.update(content)
    return found.hexdigest()


def digest_file(path: Path, kind: DigestKind) -> str:
    """Return the digest of a file, in hex; it is read in blocks, so that memory does not grow with the file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        return _digest_open(file, kind)


def _digest_open(file: IO[bytes], kind: DigestKind) -> str:
    found = new_hash(kind)
    while block := file.read(_READ):
        found.update(block)
    return found.hexdigest()


def find_sha256(file: IO[bytes], digest: str) -> str:
    """Return the SHA-256 of an open file, in hex; its ``digest`` may be that already.

    Args:
        file: is at its start, before and after.
        digest: of its whole content, of any kind.
    """
    if kind_of(digest) == "sha256":
        return digest
    found = _digest_open(file, "sha256")
    file.seek(0)
    return found


def has_digest(path: Path, digest: str) -> bool:
    """Return whether the content of a file has a digest.

    Raises:
        OSError: the file cannot be read.
    """
    return digest_file(path, kind_of(digest)) == digest
