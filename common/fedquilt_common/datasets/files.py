"""Data files as published, or packed with gzip, xz or zip; read as streams, never further than needed."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError

SUFFIXES = ("", ".gz", ".xz", ".zip")
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)


def dataset_folder(folder: Path | None, name: str) -> Path:
    """The data set's own folder below ``folder``. Raises DataUnavailableError where there is none."""
    if folder is None:
        raise DataUnavailableError(
            f"the data set '{name}' needs a folder of data sets; set FEDQUILT_DATA to the one that holds '{name}/'"
        )
    if not (folder / name).is_dir():
        raise DataUnavailableError(
            f"{folder / name}: there is no such folder; put the files of '{name}' there, or set "
            f"FEDQUILT_DATA to the folder that holds '{name}/'"
        )
    return folder / name


def find(folder: Path, name: str) -> Path:
    """The file ``name`` in ``folder``, or the same packed. Raises DataUnavailableError."""
    for suffix in SUFFIXES:
        if (folder / (name + suffix)).is_file():
            return folder / (name + suffix)
    raise DataUnavailableError(
        f"{folder / name}: there is no such file, nor one ending in {', '.join(SUFFIXES[1:])}; put it there"
    )


@contextlib.contextmanager
def open_packed(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked bytes of ``path`` as a stream, so that nothing is unpacked before it is asked for.

    Raises DataUnavailableError for a file that cannot be read, is cut short or is not packed as its name
    says.
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
        return cast("IO[bytes]", file)  # which it is in all but its annotations
    if path.suffix == ".xz":
        return stack.enter_context(lzma.open(path, "rb"))
    if path.suffix == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(path))
        return stack.enter_context(archive.open(_member(archive, path)))
    return stack.enter_context(path.open("rb"))


def _member(archive: zipfile.ZipFile, path: Path) -> str:
    """The archive's only file, or the one that is called like the archive."""
    files = [info.filename for info in archive.infolist() if not info.is_dir()]
    named = [name for name in files if PurePosixPath(name).name == path.stem]
    found = named or files
    if len(found) != 1:
        raise DataUnavailableError(f"{path}: holds {len(files)} files and no one called '{path.stem}'; repack it")
    return found[0]


def read_exactly(stream: IO[bytes], size: int, path: Path) -> bytes:
    """The next ``size`` bytes. Raises DataUnavailableError where the file ends before them."""
    parts: list[bytes] = []
    missing = size
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise DataUnavailableError(f"{path}: ends {missing} bytes too early; fetch the file again")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_end(stream: IO[bytes], path: Path) -> None:
    """Raises DataUnavailableError where something follows, which also checks a packed file's checksum."""
    if stream.read(1):
        raise DataUnavailableError(f"{path}: has bytes after the last record; fetch the file again")


def read_records(stream: IO[bytes], size: int, most: int, path: Path) -> NDArray[np.uint8]:
    """All records of ``size`` bytes, shape (n, size). Raises DataUnavailableError for none, more than ``most``, or a
    file that ends within one."""
    parts: list[bytes] = []
    while part := stream.read(size * most + 1 - sum(map(len, parts))):
        parts.append(part)
    data = b"".join(parts)
    count, rest = divmod(len(data), size)
    if rest or not 1 <= count <= most:
        raise DataUnavailableError(
            f"{path}: has {len(data)} bytes, or more, where 1 to {most} records of {size} should be; fetch it again"
        )
    return np.frombuffer(data, np.uint8).reshape(count, size)
