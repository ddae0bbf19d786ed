"""Download a data set into its folder: fetch, check, record, unpack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.address_text import hide_password
from fedquilt_common.data_tools.manifest import NAME, DownloadRecord, add_record, read_records
from fedquilt_common.data_tools.published import find_folder
from fedquilt_common.data_tools.sources import SOURCES, STEPS, PublishedFileSource, Unpacking
from fedquilt_common.datasets import DATASETS
from fedquilt_common.downloads.addresses import drop_user
from fedquilt_common.downloads.fetch import fetch
from fedquilt_common.downloads.partial import OnBytes
from fedquilt_common.downloads.unpack import OnUnpacked, remove, unpack, unpack_file
from fedquilt_common.errors import (
    DataUnavailableError,
    DownloadError,
    ExperimentError,
    ManualStepsError,
    UnknownNameError,
)
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import replace_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.user_imports import suggest

_LOCK: Final = ".get.lock"
"""Held while a file is downloaded, unpacked and recorded; the lock of ``fetch`` covers only the download."""
OnFile = Callable[[str], OnBytes]
"""Receives what begins, such as ``a.zip``; returns the function that receives its bytes."""


@dataclass(frozen=True)
class ReceivedFile:
    """A file of a data set.

    Attributes:
        name: in the data set's folder.
        url: where it comes from, without a password; "" if it was there before the first download.
        sha256: its digest, in hex.
        size: its bytes.
        was_there: it was downloaded before.
        checksum: ``published`` if it is known from elsewhere; ``recorded`` if only its first download is known;
            ``unknown`` if none is published, and the file was there before the first download.
        unpacked: the folder or file that it was unpacked to; "" if loaders read it as it is.
    """

    name: str
    url: str
    sha256: str
    size: int
    was_there: bool
    checksum: str
    unpacked: str


def get_set(name: str, root: Path, url: str | None, on_file: OnFile) -> Iterator[ReceivedFile]:
    """Download what is missing of a data set.

    Args:
        name: of the data set.
        root: the folder of data sets.
        url: a mirror: the address of the only file, or that of a folder, which ends in ``/``; None: the publisher.
        on_file: called for each download and each unpacking.

    Yields:
        Each file, when it is complete.

    Raises:
        UnknownNameError: there is no such data set.
        ManualStepsError: a person has to do the rest; the message has the steps.
        DownloadError: a server refuses a file, or it is another one than expected.
        DataUnavailableError: an archive is damaged or hostile, or something else has the name of its folder.
        FolderInUseError: another process has been downloading into the same folder for 10 s.
        ExperimentError: the mirror does not fit.
    """
    check_name(name)
    folder = root / find_folder(name)
    sources = SOURCES.get(name, ())
    for source in sources:
        yield _get_file(source, folder, _choose_url(source, url, len(sources)), on_file)
    if name in STEPS:
        folder.mkdir(parents=True, exist_ok=True)
        raise ManualStepsError(f"{name}: {STEPS[name].format(folder=folder)} Then check it with `fedquilt data list`")


def check_name(name: str) -> None:
    """Raise UnknownNameError unless there is such a data set."""
    if name not in DATASETS:
        raise UnknownNameError(f"data set '{name}' is unknown; {suggest(name, DATASETS)}")


def _choose_url(source: PublishedFileSource, mirror: str | None, files: int) -> str:
    if mirror is None:
        return source.url
    if mirror.endswith("/"):
        return mirror + source.name
    if files != 1:
        raise ExperimentError(
            f"--url {hide_password(mirror)}: the data set has {files} files; give the address of a folder, with /"
        )
    return mirror


def _get_file(source: PublishedFileSource, folder: Path, url: str, on_file: OnFile) -> ReceivedFile:
    if (there := _find_unpacked(source, folder)) is not None and not (folder / source.name).exists():
        return there  # without a lock, because a finished folder may be read-only
    with report_disk_errors(folder), lock_folder(folder, name=_LOCK):
        there = _find_unpacked(source, folder)  # another process may have unpacked it meanwhile
        if there is None:
            _check_target(source, folder)
            there = _download(source, folder, url, on_file)
        if source.unpack is not None:
            (folder / source.name).unlink(missing_ok=True)
        return there


def _find_unpacked(source: PublishedFileSource, folder: Path) -> ReceivedFile | None:
    """Return the file if an earlier call has downloaded and unpacked it."""
    record = read_records(folder).get(source.name)
    if record is None or not record.unpacked or not (folder / record.unpacked).exists():
        return None
    return _describe(source, record, True)


def _check_target(source: PublishedFileSource, folder: Path) -> None:
    """Check that nothing else has the name of the folder or file that will be unpacked."""
    if source.unpack is not None and (folder / source.unpack.name).exists():
        raise DataUnavailableError(
            f"{folder / source.unpack.name}: exists, but was not unpacked by this command, so {source.name} is not "
            "downloaded. Delete or rename it, then run the same command again; or keep it, if its files are complete"
        )


def _download(source: PublishedFileSource, folder: Path, url: str, on_file: OnFile) -> ReceivedFile:
    known = read_records(folder).get(source.name)
    first = known if known and known.url else None  # the first download
    expected = source.sha256 or (first.sha256 if first else None)
    try:
        file = fetch(url, folder / source.name, expected, source.size, on_file(source.name))
    except DownloadError as error:
        if source.sha256 is None and first is not None:
            raise DownloadError(f"{error}. {folder / NAME} has the digest of the first download") from error
        raise
    if file.was_there:
        url = first.url if first else ""
    record = DownloadRecord(drop_user(url), file.sha256, file.size, source.unpack.name if source.unpack else "")
    if source.unpack is None:
        if url:
            add_record(folder, source.name, record)
    else:
        ready = _unpack(file.path, folder, source.unpack, on_file)
        add_record(folder, source.name, record)  # first, so that what has the final name is known to be complete
        replace_durably(ready, folder / source.unpack.name)
    return _describe(source, record, file.was_there)


def _unpack(archive: Path, folder: Path, how: Unpacking, on_file: OnFile) -> Path:
    """Unpack an archive to a hidden name beside the final one, and return its path."""
    progress = on_file(f"unpacking {archive.name}")
    ready = folder / f".{how.name}.ready"
    remove(ready)  # of an interrupted unpacking
    if how.inner:
        _unpack_inner(archive, how.inner, ready, lambda done: progress(done, None))
    elif archive.suffix == ".lzma":
        unpack_file(archive, ready, on_progress=lambda done: progress(done, None))
    else:
        unpack(archive, ready, strip_top=True, on_progress=lambda done: progress(done, None))
    return ready


def _unpack_inner(archive: Path, inner: str, target: Path, on_progress: OnUnpacked) -> None:
    """Unpack the archive ``inner`` that lies in another one."""
    outer = archive.with_name(f".{archive.stem}.outer")
    remove(outer)  # of an interrupted unpacking
    try:
        unpack(archive, outer)
        if not (outer / inner).is_file():
            raise DataUnavailableError(f"{archive}: lacks {inner}; delete it, then fetch the published archive")
        unpack(outer / inner, target, strip_top=True, on_progress=on_progress)
    except DataUnavailableError as error:
        raise DataUnavailableError(str(error).replace(str(outer / inner), f"{archive}, {inner}")) from error
    finally:
        remove(outer)


def _describe(source: PublishedFileSource, record: DownloadRecord, was_there: bool) -> ReceivedFile:
    checksum = "published" if source.sha256 else "recorded" if record.url else "unknown"
    return ReceivedFile(source.name, record.url, record.sha256, record.size, was_there, checksum, record.unpacked)
