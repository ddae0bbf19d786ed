"""Big payloads in chunks: split, reassemble on disk, verify, and say what is missing.

A chunk's MQTT payload is nothing but its bytes. Its header, which names the transfer by digest, travels in the
MQTT 5 property Correlation Data, so a narrow link pays for numbers only. Chunk i of n covers bytes
``i * ceil(size / n)`` onwards: size and count determine every boundary, nothing else needs to be agreed.

Of soft labels the container's own head, which says what the numbers are, travels in the header of chunk 0 as well,
so that their payloads hold the numbers and nothing else. The digest is that of head and numbers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import DamagedTransferError, PayloadError
from fedquilt_common.files.durable import replace_durably

CHUNK: Final = 256 * 1024
"""Default chunk size in bytes."""
MAX_CHUNKS: Final = 1 << 20
"""Most chunks of a transfer: what a receiver keeps in memory about each must not grow without bound."""
MAX_HEAD: Final = 16 * 1024
"""Bytes of a head, at most: a property of MQTT ends at 65,535."""
_HEADER: Final = struct.Struct(">B32sIIQ")
_VERSION: Final = 1
_READ: Final = 1 << 20


@dataclass(frozen=True)
class ChunkHeader:
    """Which bytes of which transfer: ``digest`` is the SHA-256 of the whole, in hex; ``size`` its bytes without the
    ``head``, which only chunk 0 has, and of most transfers not even that."""

    digest: str
    index: int
    count: int
    size: int
    head: bytes = b""

    def __post_init__(self) -> None:
        fits = 0 < self.count <= MAX_CHUNKS and 0 <= self.index < self.count
        fits = fits and len(self.head) <= (MAX_HEAD if self.index == 0 else 0)
        bare = bool(self.head) and (self.count, self.size) == (1, 0)  # a reply without arrays
        if not (fits and (bare or (self.count - 1) * self.step < self.size)):  # no other chunk may be empty
            raise PayloadError(f"chunk {self.index} of {self.count} of a transfer of {self.size} bytes cannot be")

    @property
    def step(self) -> int:
        """Bytes of every chunk but the last."""
        return -(-self.size // self.count)

    @property
    def offset(self) -> int:
        """First byte of this chunk within the whole."""
        return self.index * self.step

    @property
    def length(self) -> int:
        """Bytes of this chunk."""
        return min(self.step, self.size - self.offset)

    def encode(self) -> bytes:
        """49 bytes, big endian: version, digest, index, count, size; then the head."""
        return _HEADER.pack(_VERSION, bytes.fromhex(self.digest), self.index, self.count, self.size) + self.head

    @classmethod
    def decode(cls, data: bytes) -> ChunkHeader:
        """The header in ``data``; raises PayloadError when it is none."""
        if len(data) < _HEADER.size:
            raise PayloadError(f"chunk header has {len(data)} bytes instead of {_HEADER.size}")
        version, digest, index, count, size = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise PayloadError(f"chunk header has version {version}, this program speaks {_VERSION}")
        return cls(digest.hex(), index, count, size, bytes(data[_HEADER.size :]))


@dataclass(frozen=True)
class Blob:
    """A finished payload on disk. ``head``: how many of its first bytes travel in the first chunk's header."""

    path: Path
    digest: str
    size: int
    head: int = 0

    def headers(self, chunk: int) -> list[ChunkHeader]:
        """The headers of all chunks when none may be longer than ``chunk`` bytes."""
        size, head = self.size - self.head, b""
        if self.head:
            with self.path.open("rb") as file:
                head = file.read(self.head)
        step = -(-size // max(1, -(-size // chunk))) or 1
        count = max(1, -(-size // step))  # equal steps can need fewer chunks than size / chunk suggests
        return [ChunkHeader(self.digest, index, count, size, b"" if index else head) for index in range(count)]


def digest_file(path: Path) -> str:
    """SHA-256 of a file in hex, read in blocks so that memory does not grow with the file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ):
            digest.update(block)
    return digest.hexdigest()


def read_chunk(descriptor: int, header: ChunkHeader, head: int = 0) -> bytes:
    """The bytes of one chunk from an open file whose first ``head`` bytes travel elsewhere."""
    return os.pread(descriptor, header.length, head + header.offset)


class Assembly:
    """One transfer on its way in, written to ``path`` as it comes.

    Args:
        path: the partial file; replaced if it exists.
        first: the header of any chunk of the transfer.
        limit: largest size in bytes that is accepted, checked before anything is written.

    Raises:
        PayloadError: when the transfer is larger than ``limit``.
    """

    def __init__(self, path: Path, first: ChunkHeader, limit: int) -> None:
        if first.size > limit:
            raise PayloadError(f"transfer of {first.size} bytes is larger than the {limit} bytes expected")
        self.path = path
        self.digest = first.digest
        self.size = first.size
        self.count = first.count
        self._arrived = bytearray(first.count)
        self._lacking = first.count
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._head = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")  # opened anew for each chunk: a thousand transfers must not take a thousand descriptors

    def fits(self, header: ChunkHeader) -> bool:
        """Whether a chunk belongs to this transfer; the same bytes cut otherwise are another one."""
        return (header.digest, header.size, header.count) == (self.digest, self.size, self.count)

    def add(self, header: ChunkHeader, payload: bytes) -> bool:
        """Write one chunk; True once nothing is missing. A chunk that came before is ignored.

        Raises:
            PayloadError: when the chunk does not belong here or has the wrong length.
        """
        if not self.fits(header):
            raise PayloadError("chunk belongs to another transfer, or its size or count changed on the way")
        if len(payload) != header.length:
            raise DamagedTransferError(f"chunk {header.index} has {len(payload)} bytes instead of {header.length}")
        if not self._arrived[header.index]:
            self._write(payload, header.offset)
            self._arrived[header.index] = 1
            self._lacking -= 1
            self._head = header.head or self._head
            if header.index == self._hashed:  # in order, as almost always: hash while the bytes are warm
                self._hash.update(header.head)
                self._hash.update(payload)
                self._hashed += 1
        return not self._lacking

    def _write(self, payload: bytes, offset: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(payload)

    @property
    def missing(self) -> set[int]:
        """Indices that have not come yet."""
        return {index for index, arrived in enumerate(self._arrived) if not arrived}

    def finish(self, target: Path, *, durable: bool = False) -> Blob:
        """Verify the digest and move the file to ``target``; ``durable`` waits for the disk.

        Raises:
            PayloadError: when the bytes are not those that the digest names; the partial file is deleted.
        """
        if self._head:
            self._put_head_before()
        if self._actual_digest() != self.digest:
            self.discard()
            raise DamagedTransferError("the bytes received do not have the announced SHA-256")
        target.parent.mkdir(parents=True, exist_ok=True)
        if durable:
            replace_durably(self.path, target)
        else:
            self.path.replace(target)
        return Blob(target, self.digest, len(self._head) + self.size, len(self._head))

    def _put_head_before(self) -> None:
        numbers = self.path.with_name(f"{self.path.name}.numbers")
        self.path.replace(numbers)
        with numbers.open("rb") as source, self.path.open("wb") as whole:
            whole.write(self._head)
            shutil.copyfileobj(source, whole)
        numbers.unlink()

    def discard(self) -> None:
        """Give the transfer up and delete its partial file."""
        self.path.unlink(missing_ok=True)

    def _actual_digest(self) -> str:
        if self._hashed == self.count:
            return self._hash.hexdigest()
        return digest_file(self.path)
