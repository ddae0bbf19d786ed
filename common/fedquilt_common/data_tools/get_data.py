"""Download a data set into its folder: fetch, check, record, unpack."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedquilt_common.data_tools.manifest import NAME, DownloadRecord, add_record, read_records
from fedquilt_common.data_tools.published import find_folder
from fedquilt_common.data_tools.sources import SOURCES, STEPS, PublishedFileSource, Unpacking
from fedquilt_common.datasets import DATASETS
from fedquilt_common.downloads.fetch import fetch
from fedquilt_common.downloads.partial import OnBytes
from fedquilt_common.downloads.unpack import unpack, unpack_file
from fedquilt_common.errors import DownloadError, ExperimentError, ManualStepsError, UnknownNameError
from fedquilt_common.user_imports import suggest

OnFile = Callable[[str], OnBytes]
"""Receives what begins, such as ``a.zip``; returns the function that receives its bytes."""


@dataclass(frozen=True)
class ReceivedFile:
    """A file of a data set.

    Attributes:
        name: in the data set's folder.
        url: where it comes from.
        sha256: its digest, in hex.
        size: its bytes.
        was_there: it was downloaded before.
        checksum: ``published`` if it is known from elsewhere; ``recorded`` if only its first download is known.
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
        DataUnavailableError: an archive is damaged or hostile.
        ExperimentError: the mirror does not fit.
    """
    if name not in DATASETS:
        raise UnknownNameError(f"data set '{name}' is unknown; {suggest(name, DATASETS)}")
    folder = root / find_folder(name)
    sources = SOURCES.get(name, ())
    for source in sources:
        yield _get_file(source, folder, _choose_url(source, url, len(sources)), on_file)
    if name in STEPS:
        folder.mkdir(parents=True, exist_ok=True)
        raise ManualStepsError(f"{name}: {STEPS[name].format(folder=folder)} Then check it with `fedquilt data list`")


def _choose_url(source: PublishedFileSource, mirror: str | None, files: int) -> str:
    if mirror is None:
        return source.url
    if mirror.endswith("/"):
        return mirror + source.name
    if files != 1:
        raise ExperimentError(f"--url {mirror}: the data set has {files} files; give the address of a folder, with /")
    return mirror


def _get_file(source: PublishedFileSource, folder: Path, url: str, on_file: OnFile) -> ReceivedFile:
    record = read_records(folder).get(source.name)
    if record is not None and record.unpacked and (folder / record.unpacked).exists():
        return _describe(source, record, True)
    expected = source.sha256 or (record.sha256 if record else None)
    archive = folder / source.name
    try:
        file = fetch(url, archive, expected, source.size, on_file(source.name))
    except DownloadError as error:
        if source.sha256 is None and record is not None:
            raise DownloadError(f"{error}. {folder / NAME} has the digest of the first download") from error
        raise
    record = DownloadRecord(url, file.sha256, file.size, source.unpack.name if source.unpack else "")
    if source.unpack is not None and not (folder / source.unpack.name).exists():
        _unpack(archive, folder, source.unpack, on_file)
    add_record(folder, source.name, record)
    if source.unpack is not None:
        archive.unlink()
    return _describe(source, record, file.was_there)


def _unpack(archive: Path, folder: Path, how: Unpacking, on_file: OnFile) -> None:
    progress = on_file(f"unpacking {archive.name}")
    target = folder / how.name
    if how.inner:
        outer = folder / f".{archive.stem}.outer"
        shutil.rmtree(outer, ignore_errors=True)  # of an interrupted unpacking
        unpack(archive, outer)
        unpack(outer / how.inner, target, strip_top=True, on_progress=lambda done: progress(done, None))
        shutil.rmtree(outer)
    elif archive.suffix == ".lzma":
        unpack_file(archive, target, on_progress=lambda done: progress(done, None))
    else:
        unpack(archive, target, strip_top=True, on_progress=lambda done: progress(done, None))


def _describe(source: PublishedFileSource, record: DownloadRecord, was_there: bool) -> ReceivedFile:
    checksum = "published" if source.sha256 else "recorded"
    return ReceivedFile(source.name, record.url, record.sha256, record.size, was_there, checksum, record.unpacked)
