"""The replies of a run on disk: small ones one after another in segments, others in files of their own.

A file for each small reply would take most of the coordinator's time: to create it, to wait until it is on the disk, to
rename, to open and to delete it. All small replies that have arrived become durable together instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from fedquilt_common.files.digests import digest_bytes, digest_file, kind_of
from fedquilt_common.files.durable import sync, write_all
from fedquilt_common.process.background_thread import BackgroundThread
from fedquilt_common.types import ClientId
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.message_base import DIGEST_PATTERN

_SEGMENT: Final = re.compile(r"segment-(\d+)")
_ENTRY_BYTES: Final = 128
"""Bytes before each reply in a segment: its name and its size."""
_ENTRY: Final = re.compile(rb"reply (\d{1,9}-\d{1,9}\.\d{1,9}-" + DIGEST_PATTERN.encode() + rb") (\d{1,12}) *\n")
_ALIGNMENT: Final = 64
_sync_data: Final = getattr(os, "fdatasync", os.fsync)  # macOS has only fsync
_WAITING: Final = 64
"""Files that wait for the disk at most: no more replies than messages that are not acknowledged."""


def reply_name(client: ClientId, round: int, exchange: int, digest: str) -> str:
    """Return the name of a reply; it has the client's number, so each reply belongs to one client."""
    return f"{client}-{round}.{exchange}-{digest}"


class DamageError(Exception):
    """Bytes on the disk do not fit their name, or cannot be read; the text gives the reason."""


@dataclass(frozen=True)
class ReplyPlace:
    """The bytes of a reply: ``size`` from ``start`` of a file, or the whole file."""

    path: Path
    start: int = 0
    size: int | None = None

    def find_damage(self, digest: str) -> str | None:
        """Return how the bytes differ from their ``digest``, in words; None if they are intact."""
        try:
            self._verify(digest)
        except DamageError as damage:
            return str(damage)
        return None

    def load(self, digest: str, *, intact: bool = False) -> FileArrays:
        """Return the arrays of an intact reply, read when they are used.

        Args:
            intact: a file of its own that was verified a moment ago is not verified again.

        Raises:
            DamageError: the bytes do not have the ``digest``, or cannot be read.
            PayloadError: the bytes are no container.
        """
        content = None if intact and self.size is None else self._verify(digest)
        return FileArrays(self.path, self.start, self.size, content)

    def _verify(self, digest: str) -> bytes | None:
        """Return the bytes of a reply in a segment, which are intact; None for a reply with a file of its own."""
        try:
            content, kind = None if self.size is None else self.read(), kind_of(digest)
            found = digest_file(self.path, kind) if content is None else digest_bytes(content, kind)
        except OSError as error:
            raise DamageError(f"cannot be read: {error.strerror}") from None
        if found != digest:
            raise DamageError("is damaged: its content does not have the digest of its name")
        return content

    def read(self) -> bytes:
        """Return the bytes of a reply in a segment; fewer if the segment is cut.

        Raises:
            OSError: the segment cannot be read.
        """
        with self.path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), self.size or 0, self.start)

    def arrays(self) -> FileArrays:
        """Return the arrays of the reply, read when they are used.

        Raises:
            PayloadError: the bytes are no container.
        """
        return FileArrays(self.path, self.start, self.size)


class ReplyFiles:
    """The replies in a folder; one process writes, others may read.

    Args:
        folder: where they are; a writer must create it first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        segments = _segments(folder)
        self._places = {name: place for _, path in segments for name, place in _read_segment(path)}
        self._next = 1 + max((number for number, _ in segments), default=0)
        self._file: BinaryIO | None = None
        self._segment = folder
        self._end = self._synced = 0
        self._own_files = BackgroundThread("sync", _WAITING)
        self._has_new_names = False

    def path(self, name: str) -> Path:
        """Return the path of a reply with a file of its own, whether it exists or not."""
        return self.folder / name

    def find(self, name: str) -> ReplyPlace:
        """Return where a reply is, or would be if it has a file of its own."""
        return self._places.get(name) or ReplyPlace(self.path(name))

    @property
    def is_synced(self) -> bool:
        """Whether ``sync`` would not wait for replies with files of their own."""
        return self._own_files.is_done

    def add(self, name: str) -> None:
        """Begin to bring a reply with a file of its own to the disk; it is durable after ``sync``.

        The file may be deleted meanwhile.
        """
        self._has_new_names = True
        self._own_files.begin(_sync_unless_deleted, self.path(name))

    def append(self, name: str, content: bytes) -> None:
        """Write a reply to the segment; it is durable after ``sync``.

        Raises:
            OSError: the disk is full or broken; what was written of it does not count.
        """
        file = self._file or self._begin_segment()
        entry = f"reply {name} {len(content)}".encode().ljust(_ENTRY_BYTES - 1) + b"\n"
        try:
            write_all(file, b"".join((entry, content, bytes(_padding(len(content))))))
        except OSError:
            self.end_segment()  # whoever reads the segment stops at the torn reply
            raise
        self._places[name] = ReplyPlace(self._segment, self._end + _ENTRY_BYTES, len(content))
        self._end += _ENTRY_BYTES + len(content) + _padding(len(content))

    def sync(self) -> None:
        """Wait until all replies are on the disk, and their names.

        Raises:
            OSError: the disk is full or broken.
        """
        self._own_files.wait()
        if self._file is not None:
            self._sync_segment(self._file)
        if self._has_new_names:
            sync(self.folder)
            self._has_new_names = False

    def _sync_segment(self, file: BinaryIO) -> None:
        if self._synced < self._end:
            _sync_data(file.fileno())
            self._synced = self._end

    def forget(self, name: str) -> None:
        """Forget a damaged reply, so that it can be written again.

        Raises:
            OSError: its file cannot be deleted.
        """
        self._places.pop(name, None)
        self.path(name).unlink(missing_ok=True)
        self.end_segment()  # its file may be damaged as a whole, or gone

    def end_segment(self) -> None:
        """Bring the segment's replies to the disk and close it; the next reply begins a new one.

        Raises:
            OSError: the disk is full or broken.
        """
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._sync_segment(file)

    def close(self) -> None:
        """Close the segment, and end the thread that syncs. A reply that is not durable by now has no receipt."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._own_files.close()

    def clear(self, keep: Collection[str] = ()) -> list[Path]:
        """Forget all replies but those named in ``keep``, and delete the segments without any of them.

        Returns:
            The files of single replies, which the caller must delete.

        Raises:
            OSError: a segment cannot be deleted.
        """
        self.end_segment()
        self._places = {name: place for name, place in self._places.items() if name in keep}
        kept = {self.find(name).path for name in keep}
        for _, path in _segments(self.folder):
            if path not in kept:
                path.unlink()
        return [path for path in self.folder.iterdir() if path not in kept]

    def _begin_segment(self) -> BinaryIO:
        self._segment = self.folder / f"segment-{self._next}"
        self._file = self._segment.open("xb", buffering=0)
        self._next += 1
        self._has_new_names = True
        self._end = self._synced = 0
        return self._file


def _sync_unless_deleted(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync(path)


def _padding(size: int) -> int:
    """Return the bytes after a reply, so that the next one begins where an array may begin."""
    return -(_ENTRY_BYTES + size) % _ALIGNMENT


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the numbers and paths of a folder's segments, oldest first."""
    found = [(_SEGMENT.fullmatch(path.name), path) for path in folder.glob("segment-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def _read_segment(path: Path) -> Iterator[tuple[str, ReplyPlace]]:
    """Yield the names and places of a segment's replies, up to one that was not written whole."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        at = 0
        while match := _ENTRY.fullmatch(os.pread(file.fileno(), _ENTRY_BYTES, at)):
            start, size = at + _ENTRY_BYTES, int(match[2])
            if start + size > end:
                return
            yield match[1].decode(), ReplyPlace(path, start, size)
            at = start + size + _padding(size)
