"""Large payloads in chunks: split and publish them; reassemble them on disk, verify them, and list what is missing.

The MQTT payload of a chunk is exactly its bytes. Its header names the transfer by digest and travels in the MQTT 5
property Correlation Data, so a narrow link carries numbers only. Chunk i of n covers the bytes from
``i * ceil(size / n)`` on: size and count determine every boundary.

For soft labels, the header of chunk 0 also carries the container's head, which describes the numbers. Their payloads
hold numbers only. The digest covers head and numbers.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedquilt_common.errors import DamagedTransferError, PayloadError
from fedquilt_common.files.digests import digest_bytes, digest_file, kind_of, new_hash
from fedquilt_common.files.durable import replace_durably, start_writing
from fedquilt_common.wire.bitmaps import ChunkSet

if TYPE_CHECKING:
    from fedquilt_common.wire.transport import Transport

CHUNK: Final = 256 * 1024
"""Bytes of a chunk of most transfers: on a slow line, a chunk must arrive before the broker gives the board up."""
LARGEST_CHUNK: Final = 1024 * 1024
"""Most bytes of a chunk of a large transfer, unless the experiment's ``wire.chunk`` sets another limit."""
_MANY: Final = 48
"""Chunks from which a transfer has larger ones instead of more: each message costs time on three machines."""
MAX_CHUNKS: Final = 1 << 20
"""Most chunks of a transfer; it bounds what a receiver holds in memory for one."""
_LEAST_STEP: Final = 8
"""Least bytes of one of several chunks: of a link's smallest payload of 16 bytes, equal parts are more than half."""
MAX_HEAD: Final = 16 * 1024
"""Most bytes of a head; a property of MQTT holds at most 65,535."""
_HEADERS: Final = {1: struct.Struct(">B32sIIQ"), 2: struct.Struct(">B16sIIQ")}
"""The headers by version: the first has a SHA-256, the second an XXH3."""
_WRONG_DIGEST: Final = "the bytes received do not have the announced digest"


@dataclass(frozen=True)
class ChunkHeader:
    """Which bytes of which transfer a chunk holds.

    Attributes:
        digest: XXH3 or SHA-256 of the whole transfer, in hex.
        index: number of this chunk, from 0.
        count: number of chunks of the transfer.
        size: bytes of the transfer without its ``head``.
        head: first bytes of the payload of soft labels; chunk 0 only, empty for other transfers.

    Raises:
        PayloadError: no transfer has a chunk with these numbers.
    """

    digest: str
    index: int
    count: int
    size: int
    head: bytes = b""

    def __post_init__(self) -> None:
        in_range = 0 < self.count <= MAX_CHUNKS and 0 <= self.index < self.count
        in_range = in_range and len(self.head) <= (MAX_HEAD if self.index == 0 else 0)
        head_only = bool(self.head) and (self.count, self.size) == (1, 0)  # a reply without arrays
        if not (in_range and (head_only or (self.count - 1) * self.step < self.size)):  # no other chunk may be empty
            raise PayloadError(f"chunk {self.index} of {self.count} of a transfer of {self.size} bytes cannot exist")

    @property
    def step(self) -> int:
        """Bytes of every chunk but the last."""
        return -(-self.size // self.count)

    @property
    def offset(self) -> int:
        """First byte of this chunk within the transfer."""
        return self.index * self.step

    @property
    def length(self) -> int:
        """Bytes of this chunk."""
        return min(self.step, self.size - self.offset)

    def encode(self) -> bytes:
        """Encode as 49 bytes, or 33 with an XXH3: version, digest, index, count, size, big endian; and the head."""
        version = 1 if kind_of(self.digest) == "sha256" else 2
        fields = bytes.fromhex(self.digest), self.index, self.count, self.size
        return _HEADERS[version].pack(version, *fields) + self.head

    @classmethod
    def decode(cls, data: bytes) -> ChunkHeader:
        """Decode a header.

        Raises:
            PayloadError: ``data`` is no header, or one of a later version.
        """
        if not data:
            raise PayloadError("chunk has no header: its message lacks the property Correlation Data")
        version = data[0]
        if (header := _HEADERS.get(version)) is None:
            raise PayloadError(
                f"chunk header has version {version}, this program supports {max(_HEADERS)} at most: "
                "install the same fedquilt version on coordinator and boards"
            )
        if len(data) < header.size:
            raise PayloadError(f"chunk header of version {version} has {len(data)} bytes instead of {header.size}")
        _, digest, index, count, size = header.unpack_from(data)
        return cls(digest.hex(), index, count, size, bytes(data[header.size :]))


def usual_chunk(size: int) -> int:
    """Return the largest chunk of a transfer of ``size`` bytes, if nothing else limits it: 256 KiB, or a 48th of it."""
    return max(CHUNK, -(-size // _MANY))


@dataclass(frozen=True)
class Blob:
    """A complete payload on disk.

    Attributes:
        path: its file.
        digest: XXH3 or SHA-256 of the file, in hex.
        size: bytes of the file.
        head: number of its first bytes that travel in the header of chunk 0.
    """

    path: Path
    digest: str
    size: int
    head: int = 0

    def count_chunks(self, largest: int) -> int:
        """Return the number of chunks: of ``CHUNK`` bytes or a 48th of the blob, but of at most ``largest`` bytes."""
        size = self.size - self.head
        chunk = min(largest, usual_chunk(size))
        step = -(-size // max(1, -(-size // chunk))) or 1
        return max(1, -(-size // step))  # equal steps can need fewer chunks than size / chunk suggests

    def headers(self, largest: int, first: int = 0, most: int | None = None) -> list[ChunkHeader]:
        """Return the headers of chunks of at most ``largest`` bytes: from the number ``first`` on, at most ``most``."""
        size, head, count = self.size - self.head, b"", self.count_chunks(largest)
        if self.head:
            with self.path.open("rb") as file:
                head = file.read(self.head)
        end = count if most is None else min(count, first + most)
        return [ChunkHeader(self.digest, index, count, size, b"" if index else head) for index in range(first, end)]


def read_chunk(descriptor: int, header: ChunkHeader, head: int = 0) -> bytes:
    """Read the bytes of one chunk from an open file, whose first ``head`` bytes travel in a header."""
    return os.pread(descriptor, header.length, head + header.offset)


def publish_chunks(
    transport: Transport,
    blob: Blob,
    headers: Iterable[ChunkHeader],
    topic_of: Callable[[int], str],
    *,
    retain: bool = False,
) -> bool:
    """Publish chunks of a blob, one at a time, so that memory holds one of them.

    Args:
        transport: where to publish.
        blob: the payload that the chunks are read from.
        headers: the chunks to publish, in this order; all or some of ``blob.headers(...)``.
        topic_of: the topic of the chunk with a given index.
        retain: whether the broker retains the chunks.

    Returns:
        True if all were published; False if the connection was lost, and the rest was not published.
    """
    descriptor = os.open(blob.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for header in headers:
            payload = read_chunk(descriptor, header, blob.head)
            if not transport.publish(topic_of(header.index), payload, header=header.encode(), retain=retain):
                return False
    finally:
        os.close(descriptor)
    return True


def read_whole(header: ChunkHeader, payload: bytes) -> bytes:
    """Return the bytes of a transfer that is one chunk, with the head of soft labels.

    Raises:
        DamagedTransferError: the bytes do not have the announced length or digest.
    """
    _check_length(header, payload)
    content = header.head + payload
    if digest_bytes(content, kind_of(header.digest)) != header.digest:
        raise DamagedTransferError(_WRONG_DIGEST)
    return content


def check_size(header: ChunkHeader, limit: int) -> None:
    """Check the size of a transfer, before memory or disk is taken for it.

    Raises:
        PayloadError: the transfer is larger than ``limit``.
    """
    if header.size > limit:
        raise PayloadError(f"transfer of {header.size} bytes is larger than the {limit} bytes expected")


def check_steps(header: ChunkHeader) -> None:
    """Check the size of the chunks of a transfer, before memory is taken for each of them.

    Raises:
        PayloadError: they are smaller than those of any link.
    """
    if header.count > 1 and header.step < _LEAST_STEP:
        raise PayloadError(
            f"transfer of {header.size} bytes in {header.count} chunks: each must have {_LEAST_STEP} bytes or more"
        )


def _check_length(header: ChunkHeader, payload: bytes) -> None:
    if len(payload) != header.length:
        raise DamagedTransferError(f"chunk {header.index} has {len(payload)} bytes instead of {header.length}")


class Assembly:
    """An incoming transfer, written to ``path`` as its chunks arrive.

    Args:
        path: the partial file; an existing one is replaced, unless ``kept`` is given.
        first: the header of any chunk of the transfer.
        limit: largest accepted size in bytes, checked before anything is written.
        kept: number of the first chunks that the partial file holds already.
        durable: the whole file is on the disk when ``finish`` returns.
        over: a spare file of any size, which becomes the partial file: the transfer overwrites its blocks.

    Raises:
        PayloadError: the transfer is larger than ``limit``.
    """

    def __init__(
        self,
        path: Path,
        first: ChunkHeader,
        limit: int,
        kept: int = 0,
        *,
        durable: bool = False,
        over: Path | None = None,
    ) -> None:
        check_size(first, limit)
        self.path = path
        self._durable = durable
        self._unwritten = 0
        self.digest = first.digest
        self.size = first.size
        self.count = first.count
        self._arrived = ChunkSet(first.count, kept)
        self._missing_count = first.count - kept
        self._complete_up_to = kept
        self._hash = new_hash(kind_of(first.digest))
        self._hashed = 0
        self._head = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        if over is not None:
            over.replace(path)
            os.truncate(path, first.size)
        path.open(
            "r+b" if kept or over is not None else "wb"
        ).close()  # reopened for each chunk: a thousand transfers must not hold a thousand descriptors

    @property
    def unwritten(self) -> int:
        """About how many bytes of the file are missing."""
        return self.size * self._missing_count // self.count

    def fits(self, header: ChunkHeader) -> bool:
        """Whether a chunk belongs to this transfer; the same bytes in other chunks are another transfer."""
        return (header.digest, header.size, header.count) == (self.digest, self.size, self.count)

    def add(self, header: ChunkHeader, payload: bytes) -> bool:
        """Write one chunk, unless it is a duplicate.

        Returns:
            Whether all chunks have arrived.

        Raises:
            PayloadError: the chunk belongs to another transfer.
            DamagedTransferError: the chunk has the wrong length.
        """
        if not self.fits(header):
            raise PayloadError("chunk belongs to another transfer, or its size or count changed on the way")
        _check_length(header, payload)
        if header.index not in self._arrived:
            self._write(payload, header.offset)
            self._arrived.add(header.index)
            self._missing_count -= 1
            self._head = header.head or self._head
            if header.index == self._hashed:  # as almost always: hash while the bytes are in the cache
                self._hash.update(header.head)
                self._hash.update(payload)
                self._hashed += 1
        return not self._missing_count

    def _write(self, payload: bytes, offset: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while payload:
                written = os.pwrite(descriptor, payload, offset)  # fewer bytes if the disk is full; then it raises
                payload, offset = payload[written:], offset + written
                self._unwritten += written
            if self._durable:
                self._unwritten = start_writing(descriptor, self._unwritten)
        finally:
            os.close(descriptor)

    @property
    def missing(self) -> set[int]:
        """Indices of the chunks that have not arrived."""
        return {index for index in range(self.count) if index not in self._arrived}

    def find_first_missing(self) -> int:
        """Return the first chunk that has not arrived; ``count`` if all have. All calls together look at each once."""
        while self._complete_up_to < self.count and self._complete_up_to in self._arrived:
            self._complete_up_to += 1
        return self._complete_up_to

    def finish(self, target: Path, *, wait: bool = True) -> Blob:
        """Verify the digest and move the file to ``target``, its final path.

        Args:
            target: the path.
            wait: whether to wait until a durable file is on the disk; otherwise the caller must sync it.

        Raises:
            DamagedTransferError: the bytes do not have the transfer's digest; the partial file is deleted.
        """
        if self._head:
            self._prepend_head()
        if self._actual_digest() != self.digest:
            self.discard()
            raise DamagedTransferError(_WRONG_DIGEST)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._durable and wait:
            replace_durably(self.path, target)
        else:
            self.path.replace(target)
        return Blob(target, self.digest, len(self._head) + self.size, len(self._head))

    def _prepend_head(self) -> None:
        numbers = self.path.with_name(f"{self.path.name}.numbers")
        self.path.replace(numbers)
        with numbers.open("rb") as source, self.path.open("wb") as whole:
            whole.write(self._head)
            shutil.copyfileobj(source, whole)
        numbers.unlink()

    def discard(self) -> None:
        """Abandon the transfer and delete its partial file."""
        self.path.unlink(missing_ok=True)

    def _actual_digest(self) -> str:
        if self._hashed == self.count:
            return self._hash.hexdigest()
        return digest_file(self.path, kind_of(self.digest))
