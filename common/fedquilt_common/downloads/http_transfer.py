"""Download a file over HTTP into its part: resume with ranges, retry, and explain what a server refuses."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import ssl
import time
from dataclasses import dataclass
from typing import Final, NoReturn

import httpx

from fedquilt_common import __version__
from fedquilt_common.address_text import hide_password
from fedquilt_common.downloads.addresses import drop_user
from fedquilt_common.downloads.partial import OnBytes, Origin, PartialFile
from fedquilt_common.downloads.retries import LONGEST_WAIT, Retries
from fedquilt_common.errors import DownloadError

_TIMEOUT: Final = 30.0
"""Seconds without a byte after which a connection counts as lost."""
_TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_LONGEST_NUMBER: Final = 18
"""Digits of a number in a header."""
_ADVICE: Final = {
    401: "it requires an account: download it in a browser, and put it there yourself",
    403: "it refuses access: download it in a browser, and put it there yourself, or use a mirror",
    404: "there is no such file any more: look at the publisher's page for its new address",
    410: "there is no such file any more: look at the publisher's page for its new address",
}


class _LostConnectionError(Exception):
    """The transfer can be repeated. ``wait`` are the seconds that the server requires."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


@dataclass(frozen=True)
class HttpDownload:
    """One file's way from a server into its part.

    Attributes:
        url: http or https.
        part: receives the bytes.
        size: bytes that the file must have; None: any.
        is_checked: a digest is compared afterwards, so that a part can be resumed without the server's validator.
        on_progress: called after each block.
        retries: how often a lost connection is repeated.
    """

    url: str
    part: PartialFile
    size: int | None
    is_checked: bool
    on_progress: OnBytes | None
    retries: Retries

    @property
    def _shown(self) -> str:
        return hide_password(self.url)

    @property
    def _recorded(self) -> str:
        return drop_user(self.url)

    def run(self) -> bool:
        """Download until the part is complete.

        Returns:
            Whether its bytes come from more than one answer, so that they could be of two versions of the file.

        Raises:
            DownloadError: the server refuses the file, does not answer, or has another one.
        """
        try:
            with _open_client() as client:
                return self._repeat(client)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            said = "" if "@" in self.url else f": {error}"  # it quotes parts of the address
            raise DownloadError(f"{self._shown}: cannot be opened{said}; correct the address") from error

    def _repeat(self, client: httpx.Client) -> bool:
        failures, most = 0, self.part.count_bytes()
        while True:
            try:
                return self._attempt(client)
            except _LostConnectionError as error:
                now = self.part.count_bytes()
                # Bytes that replace discarded ones are no progress: a server could send them again without end.
                failures, most = (1, now) if now > most else (failures + 1, most)
                if failures >= self.retries.attempts:
                    reason = str(error).rstrip(".")
                    raise DownloadError(
                        f"{self._shown}: the download failed {failures} times in a row: {reason}. Check the network, "
                        "then run the same command again to resume"
                    ) from error
                time.sleep(max(self.retries.wait_after(failures), min(error.wait, LONGEST_WAIT)))

    def _attempt(self, client: httpx.Client) -> bool:
        headers = {"Accept-Encoding": "identity", **self._range_headers()}
        try:
            with client.stream("GET", self.url, headers=headers) as response:
                if not self._is_complete(response):
                    self._receive(response)
                return response.status_code != 200
        except httpx.UnsupportedProtocol:
            raise
        except httpx.TransportError as error:
            raise _LostConnectionError(str(error) or type(error).__name__) from error

    def _range_headers(self) -> dict[str, str]:
        """Ask for the missing bytes, if those that are there belong to the file."""
        origin, offset = self.part.read_origin(), self.part.count_bytes()
        if not offset or origin is None or origin.url != self._recorded or not (origin.validator or self.is_checked):
            return {}
        return {"Range": f"bytes={offset}-", **({"If-Range": origin.validator} if origin.validator else {})}

    def _is_complete(self, response: httpx.Response) -> bool:
        """Whether the part is the whole file already, which a server answers with 416."""
        if response.status_code != 416:
            return False
        if response.headers.get("Content-Range", "").removeprefix("bytes */") == str(self.part.count_bytes()):
            return True
        self.part.discard()
        raise _LostConnectionError("the server's file is shorter than the part")

    def _receive(self, response: httpx.Response) -> None:
        """Write the body to the part."""
        self._check(response)
        total = self._continue(response) if response.status_code == 206 else self._restart(response)
        with self.part.path.open("ab") as file:
            self._check_space(total, file.tell())
            for block in response.iter_raw():  # as they arrive, so that a lost connection costs none
                if total is not None and file.tell() + len(block) > total:
                    self._refuse_more(total)
                file.write(block)
                if self.on_progress:
                    self.on_progress(file.tell(), total)
            if total is not None and file.tell() < total:
                raise _LostConnectionError(f"the answer ended after {file.tell()} of {total} bytes")

    def _refuse_more(self, total: int) -> NoReturn:
        """End a transfer that would fill the disk."""
        self.part.discard()
        raise DownloadError(
            f"{self._shown}: the server sends more than the {total} bytes of the file, so it is another one; look at "
            "the publisher's page for the right one"
        )

    def _check(self, response: httpx.Response) -> None:
        """Check that the answer is the file, not an error or a page for people."""
        status = response.status_code
        if status in _TEMPORARY:
            wait = response.headers.get("Retry-After", "")
            raise _LostConnectionError(f"the server answers {status}", _read_number(wait) or 0)
        if status not in (200, 206):
            advice = _ADVICE.get(status, "look at the publisher's page for its address")
            raise DownloadError(f"{self._shown}: the server answers {status}, so {advice}")
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in ("text/html", "application/xhtml+xml") and self.part.target.suffix not in (".html", ".htm"):
            raise DownloadError(
                f"{self._shown}: the server answers with a web page at {_without_query(response)} instead of "
                f"{self.part.target.name}; probably it requires a login or a click. Open the address in a browser"
            )
        if response.headers.get("Content-Encoding", "identity") != "identity" and not _is_gzip(self.part):
            raise DownloadError(
                f"{self._shown}: the server packs the file on its way, so it cannot resume; use a mirror"
            )

    def _continue(self, response: httpx.Response) -> int | None:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != self.part.count_bytes():
            self.part.discard()
            raise _LostConnectionError("the server sent other bytes than the missing ones")
        return self._agree(int(found[3])) if found[3] != "*" else self._guess_total(int(found[2]) + 1)

    def _guess_total(self, end: int) -> int:
        """Return the bytes of a file when the server reports only the end of the range that it sends."""
        origin = self.part.read_origin()
        return self.size or (origin.total if origin else None) or end

    def _restart(self, response: httpx.Response) -> int | None:
        """Begin at the first byte: there is no part, the file has changed, or the server does not know ranges."""
        total = self._agree(_read_number(response.headers.get("Content-Length", "")))
        self.part.restart(Origin(self._recorded, _find_validator(response), total))
        return total

    def _agree(self, total: int | None) -> int | None:
        if self.size is not None and total is not None and total != self.size:
            raise DownloadError(
                f"{self._shown}: the server's file has {total} bytes instead of {self.size}, so it is another one; "
                "look at the publisher's page for the right one"
            )
        return total if total is not None else self.size

    def _check_space(self, total: int | None, offset: int) -> None:
        """Fail before the transfer, not after hours of it."""
        if total is not None and shutil.disk_usage(self.part.path.parent).free < total - offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.part.path))


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Load the authorities' certificates once: it takes as long as a small download."""
    return httpx.create_ssl_context()


def _open_client() -> httpx.Client:
    """Open a client with the proxy that the environment names."""
    agent = {"User-Agent": f"fedquilt/{__version__}"}
    try:
        return httpx.Client(follow_redirects=True, timeout=_TIMEOUT, headers=agent, verify=_certificates())
    except ImportError as error:
        raise DownloadError(
            "the environment names a SOCKS proxy (ALL_PROXY, HTTP_PROXY or HTTPS_PROXY), which requires the package "
            "socksio: run `pip install socksio`, or name an HTTP proxy"
        ) from error
    except (ValueError, httpx.InvalidURL) as error:
        raise DownloadError(
            f"the environment names a proxy that cannot be used (ALL_PROXY, HTTP_PROXY or HTTPS_PROXY): {error}. "
            "Correct the variable"
        ) from error


def _read_number(text: str) -> int | None:
    """Return the number in a header; None if it is not a number, or has too many digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


def _find_validator(response: httpx.Response) -> str:
    etag = response.headers.get("ETag", "")
    return str(etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", ""))


def _without_query(response: httpx.Response) -> str:
    return str(response.url.copy_with(query=None, username=None, password=None))


def _is_gzip(part: PartialFile) -> bool:
    """Whether a server that labels the file as packed on its way describes the file itself."""
    return part.target.suffix in (".gz", ".tgz")
