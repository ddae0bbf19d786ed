"""Read the files of a data set one at a time, whether they lie in folders, are packed, or are members of archives.

Nothing is unpacked to the disk, so a member's path cannot lead out of the folder.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fedquilt_common.datasets.files import open_packed
from fedquilt_common.datasets.tables import MOST_BYTES
from fedquilt_common.errors import DataUnavailableError

_TAR = re.compile(r"\.(tar(\.(gz|xz|bz2))?|tgz|txz)$")
_DAMAGE = (EOFError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class PublishedFile:
    """A file as it is published.

    Attributes:
        name: without folders and packing, such as ``data_1600_accel_phone.txt``.
        where: its path, or that of its archive and its path in there, for errors.
        data: its unpacked bytes.
    """

    name: str
    where: str
    data: bytes


def read_files(place: Path, is_wanted: Callable[[str], object]) -> Iterator[PublishedFile]:
    """Read the files below ``place``, also those in its tar and zip archives, in the order of their paths.

    Args:
        place: the data set's folder.
        is_wanted: receives a file's name, without packing; its result decides whether the file is read.

    Raises:
        DataUnavailableError: a file is damaged, cannot be read, or is larger than ``MOST_BYTES``.
    """
    for path in sorted(place.rglob("*")):
        if path.is_file():
            yield from _read_path(path, is_wanted)


def _read_path(path: Path, is_wanted: Callable[[str], object]) -> Iterator[PublishedFile]:
    if _TAR.search(path.name):
        yield from _read_archive(path, _open_tar_members(path), is_wanted)
    elif path.suffix == ".zip":
        yield from _read_archive(path, _open_zip_members(path), is_wanted)
    elif is_wanted(name := re.sub(r"\.(gz|xz)$", "", path.name)):
        with open_packed(path) as stream:
            yield PublishedFile(name, str(path), _read_all(stream, str(path)))


_ArchiveMember = tuple[str, Callable[[], IO[bytes]]]


def _read_archive(
    path: Path, members: Iterator[_ArchiveMember], is_wanted: Callable[[str], object]
) -> Iterator[PublishedFile]:
    try:
        for member, open_member in members:
            name = PurePosixPath(member).name
            if is_wanted(name):
                with open_member() as stream:
                    yield PublishedFile(name, f"{path}, {member}", _read_all(stream, f"{path}, {member}"))
    except _DAMAGE as error:
        raise DataUnavailableError(f"{path}: is damaged ({error}); fetch the file again") from error
    except OSError as error:
        raise DataUnavailableError(f"{path}: cannot be read: {error}; check its permissions") from error


def _open_tar_members(path: Path) -> Iterator[_ArchiveMember]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, lambda member=member: archive.extractfile(member)  # type: ignore[misc]


def _open_zip_members(path: Path) -> Iterator[_ArchiveMember]:
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            if not info.is_dir():
                yield info.filename, lambda info=info: archive.open(info)  # type: ignore[misc]


def _read_all(stream: IO[bytes], where: str) -> bytes:
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataUnavailableError(
            f"{where}: has more than {MOST_BYTES} bytes, so it is not this data set's file; fetch it again"
        )
    return data
