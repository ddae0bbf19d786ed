"""Download a file: it appears under its name only when it is complete and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedquilt_common.address_text import hide_password
from fedquilt_common.downloads.drive import fetch_from_drive, is_drive_url
from fedquilt_common.downloads.partial import OnBytes, PartialFile
from fedquilt_common.downloads.retries import Retries
from fedquilt_common.errors import DownloadError, DownloadTooLargeError, PackageMissingError, how_to_install
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import replace_durably
from fedquilt_common.files.locking import lock_folder


@dataclass(frozen=True)
class FetchedFile:
    """A downloaded file.

    Attributes:
        path: where it is.
        size: its bytes.
        sha256: its digest, in hex.
        was_there: nothing was downloaded, because the file was there already.
    """

    path: Path
    size: int
    sha256: str
    was_there: bool = False


def fetch(
    url: str,
    target: Path,
    sha256: str | None = None,
    size: int | None = None,
    on_progress: OnBytes | None = None,
    retries: Retries | None = None,
    largest: int | None = None,
) -> FetchedFile:
    """Download a file from a web server or from Google Drive, unless it is there already.

    The bytes arrive in ``target`` + ``.part``; an interrupted download resumes there. The proxy's settings come from
    the environment, as in httpx. Two processes can fetch the same file: the second one waits for the first.

    Args:
        url: http, https, or a file on Google Drive.
        target: the file's path; its folder is created.
        sha256: the digest that the file must have, in hex; None: any.
        size: the bytes that the file must have; None: any.
        on_progress: called after each block with the bytes so far, and with all bytes if they are known.
        retries: how often a lost connection is repeated; None: as usual.
        largest: bytes after which the download stops and what has arrived is deleted; None: any number.

    Returns:
        The complete file, with its digest.

    Raises:
        DownloadError: the server refuses the file or does not answer, or the file is another one than expected.
        DownloadTooLargeError: the file has more than ``largest`` bytes.
        PackageMissingError: httpx, or gdown for Google Drive, is not installed.
        RunFolderError: the disk is full, or the folder is not writable.
        FolderInUseError: another process has been downloading the same file for 10 s.
    """
    with report_disk_errors(target.parent), _lock(target):
        if (there := _find_finished(target, sha256, size)) is not None:
            return there
        watch = on_progress if largest is None else _stop_above(largest, url, on_progress)
        try:
            return _download(url, target, sha256, size, watch, retries or Retries())
        except _ResumedAnotherFileError:
            return _download(url, target, sha256, size, watch, retries or Retries())
        except DownloadTooLargeError:
            PartialFile(target).discard()
            raise


class _ResumedAnotherFileError(DownloadError):
    """A resumed download has the wrong digest, so that only a download from the first byte can have the right one."""


def _stop_above(largest: int, url: str, on_progress: OnBytes | None) -> OnBytes:
    """Return a function that receives the progress and raises DownloadTooLargeError as soon as the limit shows."""

    def check(so_far: int, total: int | None) -> None:
        if max(so_far, total or 0) > largest:
            raise DownloadTooLargeError(
                f"{hide_password(url)}: is larger than {largest} bytes, so it is another file; check the address"
            )
        if on_progress:
            on_progress(so_far, total)

    return check


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    name = f".{target.name}.lock"
    with lock_folder(target.parent, name=name):
        yield
        (target.parent / name).unlink(missing_ok=True)  # a process that waits for it finds the finished file


def _find_finished(target: Path, sha256: str | None, size: int | None) -> FetchedFile | None:
    """Return the file if it is there and as expected. Its name alone shows that its download was complete.

    An empty file that nobody expects is not one: a redirection of the shell or a full disk leaves such files.
    """
    if not target.is_file() or (size is not None and target.stat().st_size != size):
        return None
    if not target.stat().st_size and size is None and sha256 is None:
        return None
    found = digest_file(target, "sha256")
    return FetchedFile(target, target.stat().st_size, found, True) if sha256 in (None, found) else None


def _download(
    url: str, target: Path, sha256: str | None, size: int | None, on_progress: OnBytes | None, retries: Retries
) -> FetchedFile:
    part = PartialFile(target)
    if is_drive_url(url):
        complete, resumed = fetch_from_drive(url, target, on_progress, retries), False
    else:
        complete, resumed = part.path, _transfer(url, part, sha256, size, on_progress, retries)
    try:
        file = _check(url, complete, sha256, size, resumed=resumed)
    except DownloadError:
        complete.unlink()
        part.forget_origin()
        raise
    replace_durably(complete, target)
    part.forget_origin()
    return FetchedFile(target, file.size, file.sha256)


def _transfer(
    url: str, part: PartialFile, sha256: str | None, size: int | None, on_progress: OnBytes | None, retries: Retries
) -> bool:
    try:
        from fedquilt_common.downloads.http_transfer import HttpDownload
    except ModuleNotFoundError as error:
        raise PackageMissingError(f"downloads require {error.name}: {how_to_install('data')}") from None
    return HttpDownload(url, part, size, sha256 is not None, on_progress, retries).run()


def _check(url: str, path: Path, sha256: str | None, size: int | None, *, resumed: bool) -> FetchedFile:
    """Compare a complete download with what is expected."""
    file = FetchedFile(path, path.stat().st_size, digest_file(path, "sha256"))
    if not file.size and size is None and sha256 is None:
        raise DownloadError(
            f"{hide_password(url)}: the server's file is empty (0 bytes), so it was deleted. Run the command again; if "
            "the error stays, look at the publisher's page for its new address"
        )
    if size in (None, file.size) and sha256 in (None, file.sha256):
        return file
    found, wanted = (
        (f"{file.size} bytes", f"{size} bytes")
        if size not in (None, file.size)
        else (f"the SHA-256 {file.sha256}", str(sha256))
    )
    raise (_ResumedAnotherFileError if resumed else DownloadError)(
        f"{hide_password(url)}: the downloaded file has {found} instead of {wanted}, so it is another one and was "
        "deleted. Run the command again; if the error stays, the publisher has changed the file, or this is not the "
        "publisher's address"
    )
