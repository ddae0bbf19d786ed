"""Read the files of a data set one at a time, whether they lie in folders, are packed, or are members of archives.

Nothing is unpacked to the disk, so a member's path cannot lead out of the folder.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from fedquilt_common.datasets.blocks import MOST_BYTES, read_to_end, read_up_to
from fedquilt_common.datasets.files import find_files, open_member, open_packed
from fedquilt_common.downloads.members import DAMAGE, TAR_SUFFIXES, read_tar_members
from fedquilt_common.errors import DataUnavailableError


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
    """Read the files below ``place``, including those in its tar and zip archives, in the order of their paths.

    Args:
        place: the data set's folder.
        is_wanted: receives a file's name, without packing; its result decides whether the file is read.

    Raises:
        DataUnavailableError: a file is damaged, cannot be read, or is larger than ``MOST_BYTES``.
    """
    for path in find_files(place):
        yield from _read_path(path, is_wanted)


def _read_path(path: Path, is_wanted: Callable[[str], object]) -> Iterator[PublishedFile]:
    if path.name.endswith(TAR_SUFFIXES):
        yield from _read_archive(path, _open_tar_members(path), is_wanted)
    elif path.suffix == ".zip":
        yield from _read_archive(path, _open_zip_members(path), is_wanted)
    elif is_wanted(name := re.sub(r"\.(gz|xz)$", "", path.name)):
        with open_packed(path) as stream:
            yield PublishedFile(name, str(path), read_to_end(stream, str(path)))


_ArchiveMember = tuple[str, Callable[[], IO[bytes]]]


def _read_archive(
    path: Path, members: Iterator[_ArchiveMember], is_wanted: Callable[[str], object]
) -> Iterator[PublishedFile]:
    with _report_damage(path):
        for member, opener in members:
            name = PurePosixPath(member).name
            if is_wanted(name):
                with opener() as stream:
                    yield PublishedFile(name, f"{path}, {member}", read_to_end(stream, f"{path}, {member}"))


def _open_tar_members(path: Path) -> Iterator[_ArchiveMember]:
    for member in read_tar_members(path):
        if member.is_plain and member.open is not None:
            yield member.name, member.open


def _open_zip_members(path: Path) -> Iterator[_ArchiveMember]:
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            if not info.is_dir():
                yield info.filename, lambda info=info: open_member(archive, info)  # type: ignore[misc]


@dataclass(frozen=True)
class ListedFile:
    """Where a file lies that is read later.

    Attributes:
        path: of the file, or of its zip archive.
        member: its path in the archive; empty: it is no archive.
    """

    path: Path
    member: str = ""

    @property
    def where(self) -> str:
        """Return its path for errors."""
        return f"{self.path}, {self.member}" if self.member else str(self.path)


def list_files(place: Path, is_wanted: Callable[[str], object]) -> list[ListedFile]:
    """List the files below ``place``, including those in its zip archives, in the order of their paths.

    Args:
        place: the data set's folder.
        is_wanted: receives a file's path without the folder, or its path in the archive; its result decides.

    Raises:
        DataUnavailableError: an archive is damaged or cannot be read.
    """
    found = list[ListedFile]()
    for path in find_files(place):
        if path.suffix == ".zip":
            found += [ListedFile(path, member) for member in _list_zip_members(path) if is_wanted(member)]
        elif is_wanted(str(path.relative_to(place))):
            found.append(ListedFile(path))
    return found


def _list_zip_members(path: Path) -> list[str]:
    with _report_damage(path), zipfile.ZipFile(path) as archive:
        return sorted(info.filename for info in archive.infolist() if not info.is_dir())


def read_listed(files: Iterable[ListedFile], most: int = MOST_BYTES) -> Iterator[PublishedFile]:
    """Read files one at a time; each archive is opened once.

    Args:
        files: of ``list_files``.
        most: bytes up to which a file is read; the rest is left out, as for headers.

    Raises:
        DataUnavailableError: a file is damaged or cannot be read.
    """
    for path, members in itertools.groupby(files, key=lambda file: file.path):
        with _report_damage(path), contextlib.ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path)) if path.suffix == ".zip" else None
            for file in members:
                with open_member(archive, file.member) if archive else path.open("rb") as stream:
                    data = read_up_to(stream, most)
                yield PublishedFile(PurePosixPath(file.member or path.name).name, file.where, data)


@contextlib.contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataUnavailableError(f"{path}: cannot be read: {error}; check its permissions") from error
        raise DataUnavailableError(f"{path}: is damaged ({error}); fetch the file again") from error
