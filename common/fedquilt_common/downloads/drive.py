"""Download a file from Google Drive with gdown, which handles its warning pages; it resumes too."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fedquilt_common.downloads.partial import OnBytes
from fedquilt_common.downloads.retries import Retries
from fedquilt_common.errors import DownloadError, DownloadTooLargeError, PackageMissingError, how_to_install

_HOSTS: Final = frozenset({"drive.google.com", "docs.google.com"})
_TIMEOUT: Final = 30.0
_CHANGED: Final = "did not honor the requested byte range"
"""Words of gdown if the file has changed since its part was downloaded."""


def is_drive_url(url: str) -> bool:
    """Whether a URL is that of a file on Google Drive."""
    try:
        return urlsplit(url).hostname in _HOSTS
    except ValueError:
        return False


def fetch_from_drive(url: str, target: Path, on_progress: OnBytes | None, retries: Retries) -> Path:
    """Download a file that everybody with its link may read.

    Args:
        url: such as ``https://drive.google.com/file/d/ID/view``.
        target: the name of the finished file; the parts lie beside it.
        on_progress: called after each block.
        retries: how often a lost connection is repeated.

    Returns:
        The complete download, beside ``target``; the caller checks it and renames it.

    Raises:
        DownloadError: Drive refuses the file or does not answer.
        PackageMissingError: gdown is not installed.
    """
    complete = target.with_name(f".{target.name}.drive")
    try:
        _download(url, complete, on_progress, retries)
    except DownloadTooLargeError:
        _discard(complete)
        raise
    except DownloadError as error:
        if _CHANGED not in str(error):
            raise
        _discard(complete)
        _download(url, complete, on_progress, retries)
    return complete


def _download(url: str, complete: Path, on_progress: OnBytes | None, retries: Retries) -> None:
    try:
        import gdown
        import requests
    except ModuleNotFoundError as error:
        raise PackageMissingError(
            f"downloads from Google Drive require {error.name}: {how_to_install('data')}"
        ) from None
    try:
        gdown.download(
            url, str(complete), quiet=True, use_cookies=False, resume=True, progress=on_progress, timeout=_TIMEOUT,
            retries=retries.attempts - 1,
        )  # fmt: skip
    except gdown.FileURLRetrievalError as error:
        raise DownloadError(
            f"{url}: Google Drive does not hand the file out: {_first_words(error)} Open the address in a browser, "
            "download the file there and put it into the folder, or use a mirror"
        ) from error
    except (gdown.DownloadError, requests.RequestException) as error:
        raise DownloadError(
            f"{url}: the download failed: {_first_words(error)} Check the network and the address, then run the same "
            "command again to resume"
        ) from error


def _discard(complete: Path) -> None:
    """Delete the parts, whose names gdown extends."""
    for part in complete.parent.glob(f"{complete.name}*.part"):
        part.unlink(missing_ok=True)


def _first_words(error: Exception) -> str:
    words = " ".join(str(error).split()).removeprefix("Failed to retrieve file url: ")
    return words.partition(" You may still be able")[0][:300].rstrip(".") + "."
