"""The members of tar and zip archives, read one after the other and never all at once."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

DAMAGE: Final = (
    EOFError, NotImplementedError, RecursionError, ValueError, lzma.LZMAError, struct.error, tarfile.TarError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What the standard library raises for a damaged archive; an OSError without ``errno`` is also of the archive."""
TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
"""How the names of the tar archives end that ``read_tar_members`` reads."""
_LONGEST_HEADER: Final = 1 << 20
"""Bytes of a tar header that tarfile reads at once; a hostile one announces gigabytes."""
_ENCRYPTED: Final = 0x1
_OPENERS: Final[Mapping[bytes, Callable[[Path, Literal["rb"]], Any]]] = {
    rb"\x1f\x8b": gzip.open, rb"\xfd7zXZ\x00": lzma.open, rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2.open,
}  # fmt: skip
"""What opens a packed tar, by its first bytes."""


@dataclass(frozen=True)
class PackedMember:
    """A file or folder of an archive.

    Attributes:
        name: its path as the archive has it; not to be trusted.
        is_plain: whether it is a file or folder, not a link, a device or encrypted.
        open: opens a file's contents; None for a folder.
    """

    name: str
    is_plain: bool
    open: Callable[[], IO[bytes]] | None


def read_tar_members(path: Path) -> Iterator[PackedMember]:
    """Read the members of a tar archive, plain or packed with gzip, xz or bzip2.

    Raises:
        OSError, ...: one of ``DAMAGE``; the archive is damaged.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_find_opener(path)(path, "rb"))
        reads = _ShortReads(file)
        archive = stack.enter_context(tarfile.open(fileobj=reads, mode="r:"))  # type: ignore[call-overload]
        for info in archive:
            opener = None if info.isdir() else lambda info=info: archive.extractfile(info)
            yield PackedMember(info.name, info.isreg() or info.isdir(), opener)
        if reads.last != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged or cut header for the end
            raise tarfile.ReadError(f"the header at byte {archive.offset} is damaged or cut")
        while reads.read(_LONGEST_HEADER):  # up to the end of the file, where a packed one has its checksum
            pass


def _find_opener(path: Path) -> Callable[[Path, Literal["rb"]], Any]:
    """Return what opens a tar. Its name may be wrong: some servers unpack a ``.tar.gz`` on its way."""
    with path.open("rb") as file:
        head = file.read(10)
    return next((opener for start, opener in _OPENERS.items() if re.match(start, head)), open)


def read_zip_members(path: Path) -> Iterator[PackedMember]:
    """Read the members of a zip archive.

    Raises:
        OSError, ...: one of ``DAMAGE``; the archive is damaged or cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            is_plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not info.flag_bits & _ENCRYPTED
            opener = None if info.is_dir() else lambda info=info: archive.open(info)
            yield PackedMember(info.orig_filename, is_plain, opener)


class _ShortReads:
    """A file for tarfile that refuses to read a huge header into memory, and keeps what was read last."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.last = b""
        """What was read last."""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header has {size} bytes")
        self.last = self._file.read(size)
        return self.last

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()
