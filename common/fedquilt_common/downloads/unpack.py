"""Unpack archives from strangers: nothing outside the folder, no links, no bombs, and nothing half-finished.

An archive is unpacked into a folder beside the final one, which is renamed at the end. An interrupted unpacking thus
leaves no folder under the final name, and the next one begins anew.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal

from fedquilt_common.downloads.members import (
    DAMAGE,
    TAR_SUFFIXES,
    PackedMember,
    read_tar_members,
    read_zip_members,
)
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import replace_durably, sync

OnUnpacked = Callable[[int], None]
"""Receives the unpacked bytes so far."""
_BLOCK: Final = 1 << 20
_BAD_NAMES: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
"""Errors of the disk that the name of an archive's member causes."""
_MAC_FOLDER: Final = "__MACOSX"
"""Folder of metadata that macOS adds to archives; it is left out."""
_PACKED: Final[dict[str, Callable[[Path, Literal["rb"]], Any]]] = {
    ".gz": gzip.open, ".xz": lzma.open, ".lzma": lzma.open, ".bz2": bz2.open,
}  # fmt: skip


@dataclass(frozen=True)
class UnpackLimits:
    """The most that an archive may hold.

    Attributes:
        files: number of files and folders.
        size: bytes of all files together.
        ratio: unpacked bytes for each byte of the archive, which holds beyond ``small`` bytes.
        small: bytes that every archive may hold, whatever its ratio.
    """

    files: int = 500_000
    size: int = 200 << 30
    ratio: float = 200.0
    small: int = 64 << 20

    def allow(self, archive_size: int) -> int:
        """Return the bytes that an archive of ``archive_size`` bytes may unpack to."""
        return min(self.size, max(self.small, int(self.ratio * archive_size)))


@dataclass
class _UnpackCount:
    """What is left of the limits while an archive is unpacked."""

    archive: Path
    limits: UnpackLimits
    on_progress: OnUnpacked | None
    files: int = 0
    size: int = 0

    def count_file(self) -> None:
        self.files += 1
        if self.files > self.limits.files:
            raise self._refusal(f"holds more than {self.limits.files} files")

    def count_bytes(self, count: int) -> None:
        self.size += count
        allowed = self.limits.allow(self.archive.stat().st_size)
        if self.size > allowed:
            raise self._refusal(f"unpacks to more than {allowed} bytes")
        if self.on_progress:
            self.on_progress(self.size)

    def _refusal(self, why: str) -> DataUnavailableError:
        return DataUnavailableError(
            f"{self.archive}: {why}, which no data set needs, so it is not unpacked. Check where the file comes from; "
            "if you trust it, unpack it yourself"
        )


def unpack(
    archive: Path,
    folder: Path,
    strip_top: bool = False,
    limits: UnpackLimits | None = None,
    on_progress: OnUnpacked | None = None,
) -> None:
    """Unpack a zip or tar archive into a new folder.

    Args:
        archive: ends in .zip or one of ``TAR_SUFFIXES``.
        folder: must not exist. It appears when all files are in it.
        strip_top: if all files lie in one folder of the archive, ``folder`` takes its place.
        limits: on the number of files and on their size; None: as usual.
        on_progress: called after each block.

    Raises:
        DataUnavailableError: the archive is damaged or empty, or has paths that lead out of the folder, links,
            devices, repeated names or more than the limits allow.
        RunFolderError: the disk is full, or the folder is not writable.
    """
    fresh = _begin(folder)
    so_far = _UnpackCount(archive, limits or UnpackLimits(), on_progress)
    with report_disk_errors(folder.parent), _remove_on_error(fresh):
        with _report_damage(archive):
            for member in _read_members(archive):
                so_far.count_file()
                path = _check_name(member, archive)
                if path.parts[:1] != (_MAC_FOLDER,):
                    _write_member(member, fresh / path, so_far)
        if not fresh.is_dir() or not any(fresh.iterdir()):
            raise DataUnavailableError(f"{archive}: holds no files; fetch the published archive")
        _finish(fresh, folder, strip_top)


def unpack_file(
    packed: Path, target: Path, limits: UnpackLimits | None = None, on_progress: OnUnpacked | None = None
) -> None:
    """Unpack a single file that is packed with gzip, xz, lzma or bzip2.

    Args:
        packed: ends in .gz, .xz, .lzma or .bz2.
        target: the unpacked file; it is replaced when all of it is unpacked.
        limits: on its size; None: as usual.
        on_progress: called after each block.

    Raises:
        DataUnavailableError: the file is damaged, or larger than the limits allow.
        RunFolderError: the disk is full, or the folder is not writable.
    """
    fresh = target.with_name(f".{target.name}.unpacking")
    so_far = _UnpackCount(packed, limits or UnpackLimits(), on_progress)
    with report_disk_errors(target.parent), _remove_on_error(fresh), _report_damage(packed):
        with _PACKED[packed.suffix](packed, "rb") as source:
            _copy(source, fresh, so_far)
        replace_durably(fresh, target)


def remove(path: Path) -> None:
    """Delete a file, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _remove_on_error(fresh: Path) -> Iterator[None]:
    """Delete what was unpacked so far, which may fill the disk, if the rest is refused or interrupted."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            remove(fresh)
        raise


@contextmanager
def _report_damage(archive: Path) -> Iterator[None]:
    """Turn what the standard library raises for a damaged archive into an error that names it."""
    try:
        yield
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of the archive
        raise DataUnavailableError(f"{archive}: is damaged ({error}); delete it, then fetch it again") from error


def _begin(folder: Path) -> Path:
    """Return a new folder's path beside ``folder``, without what an interrupted unpacking has left there."""
    if folder.exists():
        raise DataUnavailableError(f"{folder}: exists already; delete it to unpack it again")
    fresh = folder.with_name(f".{folder.name}.unpacking")
    remove(fresh)
    fresh.mkdir(parents=True)
    return fresh


def _finish(fresh: Path, folder: Path, strip_top: bool) -> None:
    os.sync()  # the contents reach the disk before the name; one by one would take long for many files
    entries = list(fresh.iterdir())
    if strip_top and len(entries) == 1 and entries[0].is_dir():
        entries[0].rename(folder)
        fresh.rmdir()
    else:
        fresh.rename(folder)
    sync(folder.parent)


def _read_members(archive: Path) -> Iterator[PackedMember]:
    if archive.name.endswith(TAR_SUFFIXES):
        return read_tar_members(archive)
    if archive.suffix == ".zip":
        return read_zip_members(archive)
    raise DataUnavailableError(f"{archive}: is neither a zip nor a tar archive; unpack it yourself")


def _check_name(member: PackedMember, archive: Path) -> PurePosixPath:
    name, path = member.name, PurePosixPath(member.name.replace("\\", "/"))
    why = ""
    if path.is_absolute() or ".." in path.parts or re.match(r"^[A-Za-z]:", name) or "\0" in name:
        why = "leads out of the folder"
    elif not member.is_plain:
        why = "is a link, a device or encrypted"
    if why:
        raise DataUnavailableError(
            f"{archive}: its member {name[:200]!r} {why}, so the archive is not unpacked. Check where it comes from"
        )
    return path


def _write_member(member: PackedMember, path: Path, so_far: _UnpackCount) -> None:
    try:
        if member.open is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source:
            _copy(source, path, so_far, mode="xb")
    except (FileExistsError, IsADirectoryError, NotADirectoryError, UnicodeEncodeError) as error:
        raise _cannot_write(member, so_far, str(error)) from error
    except OSError as error:
        if error.errno not in _BAD_NAMES:
            raise
        raise _cannot_write(member, so_far, error.strerror or str(error)) from error


def _cannot_write(member: PackedMember, so_far: _UnpackCount, why: str) -> DataUnavailableError:
    return DataUnavailableError(
        f"{so_far.archive}: its member {member.name[:200]!r} cannot be written: {why}. Fetch the published archive"
    )


def _copy(source: IO[bytes], target: Path, so_far: _UnpackCount, mode: str = "wb") -> None:
    with target.open(mode) as file:
        while block := source.read(_BLOCK):
            so_far.count_bytes(len(block))
            file.write(block)
