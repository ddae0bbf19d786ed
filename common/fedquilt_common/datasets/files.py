"""Read data files as streams: as published, or packed with gzip, xz or zip."""

from __future__ import annotations

import contextlib
import csv
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.blocks import read_up_to
from fedquilt_common.errors import DataUnavailableError

WHITE = 255.0
"""The byte of a white pixel."""
SUFFIXES = ("", ".gz", ".xz", ".zip")
FOLDERS: Mapping[str, str] = {"ut-har": "wifi-csi", "wisdm-p": "wisdm2019", "wisdm-w": "wisdm2019"}
"""Folders of data sets whose folder is not named like them."""
_FileKey = TypeVar("_FileKey", bound=Hashable)
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)


def dataset_folder(folder: Path | None, name: str) -> Path:
    """Folder of the data set ``name`` below ``folder``.

    Raises:
        DataUnavailableError: ``folder`` is None, or there is no such folder.
    """
    inner = FOLDERS.get(name, name)
    if folder is None:
        raise DataUnavailableError(
            f"the data set '{name}' needs a folder of data sets; set FEDQUILT_DATA to the one that holds '{inner}/', "
            f"or to a new folder and run `fedquilt data get {name}`"
        )
    if not (folder / inner).is_dir():
        raise DataUnavailableError(
            f"{folder / inner}: there is no such folder; run `fedquilt data get {name}`, put the files of '{name}' "
            f"there, or set FEDQUILT_DATA to the folder that holds '{inner}/'"
        )
    return folder / inner


def inner_folder(place: Path, name: str) -> Path:
    """Return the folder ``name`` in ``place``, as the published archive has it; ``place`` if there is none."""
    return place / name if (place / name).is_dir() else place


def find_file(folder: Path, name: str) -> Path:
    """Find the file ``name`` in ``folder``, plain or packed.

    Raises:
        DataUnavailableError: there is none.
    """
    for suffix in SUFFIXES:
        if (folder / (name + suffix)).is_file():
            return folder / (name + suffix)
    raise DataUnavailableError(
        f"{folder / name}: there is no such file, and none that also ends in {', '.join(SUFFIXES[1:])}; put it there"
    )


def is_finished(path: Path, place: Path) -> bool:
    """Whether a file below ``place`` is complete: not hidden, in no hidden folder, and no unfinished download.

    Unfinished files are hidden (``.published.unpacking/a.txt``) or named ``a.zip.part`` and ``a.zip.part.json``.
    """
    hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
    return not hidden and not path.name.endswith((".part", ".part.json"))


def find_files(place: Path, pattern: str = "*") -> list[Path]:
    """List the finished files below ``place`` whose names match a pattern, in the order of their paths."""
    return [path for path in sorted(place.rglob(pattern)) if path.is_file() and is_finished(path, place)]


def unpacked_path(path: Path) -> Path:
    """Return the path that a file has without packing: ``a.txt`` for ``a.txt.gz``."""
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def note_file(found: dict[_FileKey, str], key: _FileKey, where: str) -> None:
    """Add a file to those that were found, so that none counts twice: as a file and packed, or in an archive.

    Args:
        found: where each file lies, by what it holds.
        key: what the file holds, such as its name without packing.
        where: its path, for errors.

    Raises:
        DataUnavailableError: another file holds the same.
    """
    if key in found:
        raise DataUnavailableError(f"{where}: is also {found[key]}; remove one of the two")
    found[key] = where


@contextlib.contextmanager
def open_packed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, plain or packed, as a stream of its unpacked bytes, which are unpacked as they are read.

    Raises:
        DataUnavailableError: the file cannot be read, is truncated, or is not packed as its name suggests.
    """
    try:
        with contextlib.ExitStack() as stack:
            yield _open(path, stack)
    except _DAMAGE as error:
        raise DataUnavailableError(f"{path}: is damaged ({error}); fetch the file again") from error
    except OSError as error:
        raise DataUnavailableError(f"{path}: cannot be read: {error}; check its permissions") from error


def _open(path: Path, stack: contextlib.ExitStack) -> IO[bytes]:
    if path.suffix == ".gz":
        file = stack.enter_context(gzip.open(path, "rb"))  # noqa: SIM115 - the stack closes it
        return cast("IO[bytes]", file)  # its annotations lack that
    if path.suffix == ".xz":
        return stack.enter_context(lzma.open(path, "rb"))
    if path.suffix == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(path))
        return stack.enter_context(open_member(archive, _member_name(archive, path)))
    return stack.enter_context(path.open("rb"))


def open_member(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> IO[bytes]:
    """Open a member of a zip archive.

    Raises:
        DataUnavailableError: it has a password, or a compression that Python does not know.
    """
    try:
        return archive.open(member)
    except RuntimeError as error:  # NotImplementedError is one
        name = member if isinstance(member, str) else member.filename
        raise DataUnavailableError(
            f"{archive.filename}, {name}: cannot be unpacked ({error}); pack it again without a password, with DEFLATE"
        ) from None


@contextlib.contextmanager
def report_csv_errors(path: Path) -> Iterator[None]:
    """Turn errors of the ``csv`` module into those of a file of a data set.

    Raises:
        DataUnavailableError: the file is not CSV, for example because a stray quotation mark swallows what follows.
    """
    try:
        yield
    except csv.Error as error:
        raise DataUnavailableError(
            f"{path}: is not a CSV file ({error}); look for a stray quotation mark, or fetch the file again"
        ) from None


def _member_name(archive: zipfile.ZipFile, path: Path) -> str:
    """Name of the archive's only file, or of the one that is named like the archive."""
    files = [info.filename for info in archive.infolist() if not info.is_dir()]
    named = [name for name in files if PurePosixPath(name).name == path.stem]
    candidates = named or files
    if len(candidates) != 1:
        raise DataUnavailableError(
            f"{path}: holds {len(files)} files, not a single one and not one named '{path.stem}'; repack it"
        )
    return candidates[0]


def read_exactly(stream: IO[bytes], size: int, path: Path) -> bytes:
    """Read the next ``size`` bytes.

    Raises:
        DataUnavailableError: the file ends before them.
    """
    data = read_up_to(stream, size)
    if len(data) < size:
        raise DataUnavailableError(f"{path}: ends {size - len(data)} bytes too early; fetch the file again")
    return data


def check_end(stream: IO[bytes], path: Path) -> None:
    """Check that the file ends here, which also checks a packed file's checksum.

    Raises:
        DataUnavailableError: more bytes follow, or the checksum is wrong.
    """
    if stream.read(1):
        raise DataUnavailableError(f"{path}: has bytes after the last record; fetch the file again")


def read_records(stream: IO[bytes], size: int, most: int, path: Path) -> NDArray[np.uint8]:
    """Read all records of a file.

    Args:
        stream: of the file.
        size: bytes of a record.
        most: greatest number of records.
        path: of the file, for errors.

    Returns:
        uint8 of shape (n, size).

    Raises:
        DataUnavailableError: there is no record, there are more than ``most``, or the last one is incomplete.
    """
    data = read_up_to(stream, size * most + 1)
    count, rest = divmod(len(data), size)
    if rest or not 1 <= count <= most:
        raise DataUnavailableError(
            f"{path}: has {len(data)} bytes or more, which is not 1 to {most} records of {size} bytes; fetch it again"
        )
    return np.frombuffer(data, np.uint8).reshape(count, size)
