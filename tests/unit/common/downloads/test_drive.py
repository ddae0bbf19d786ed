"""Google Drive: the real gdown, whose requests go to a web server of the test."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.support.file_server import FileServer, answer_page, answer_status, change_file, cut_after, serve_files

from fedquilt_common.downloads.drive import is_drive_url
from fedquilt_common.downloads.fetch import fetch
from fedquilt_common.downloads.retries import Retries
from fedquilt_common.errors import DownloadError, DownloadTooLargeError, PackageMissingError

CONTENT = random.Random(2).randbytes(1_500_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = random.Random(3).randbytes(1_500_000)
ID = "1a2oHjcEcwXP8oUF95qiwrqzACb2YlUhn"
URL = f"https://drive.google.com/file/d/{ID}/view?usp=sharing"
FILE = f"/uc?id={ID}"
HEAD = {"Content-Type": "application/zip", "Content-Disposition": 'attachment; filename="its own name.zip"'}
ONCE = Retries(1, 0.0)


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server in the place of drive.google.com."""
    with serve_files({FILE: CONTENT}) as server:
        server.headers = HEAD
        real = requests.Session.request

        def redirected(session: requests.Session, method: str, url: str, **options: object) -> requests.Response:
            return real(session, method, url.replace("https://drive.google.com", server.url("")), **options)  # type: ignore[arg-type]

        monkeypatch.setattr(requests.Session, "request", redirected)
        yield server


@pytest.mark.parametrize(
    ("url", "is_drive"),
    [
        (URL, True),
        ("https://docs.google.com/uc?export=download&id=x", True),
        ("https://drive.google.com.example.org/file/d/x/view", False),
        ("http://example.org/drive.google.com", False),
        ("http://[::1", False),
    ],
)
def test_drive_is_known_by_its_host(url: str, is_drive: bool) -> None:
    assert is_drive_url(url) == is_drive


def test_a_file_of_drive_is_checked_and_leaves_nothing_else(
    drive: FileServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "a.zip"
    file = fetch(URL, target, DIGEST, len(CONTENT), lambda done, total: seen.append((done, total)), ONCE)
    assert (file.sha256, target.read_bytes()) == (DIGEST, CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert capfd.readouterr() == ("", "")
    assert fetch(URL, target, DIGEST).was_there


def test_the_page_that_warns_of_a_large_file_is_confirmed(drive: FileServer, tmp_path: Path) -> None:
    page = (
        b'<html><form id="download-form" action="https://drive.google.com/download" method="get">'
        b'<input type="hidden" name="id" value="x"><input type="hidden" name="confirm" value="t"></form></html>'
    )
    drive.files["/download?id=x&confirm=t"] = CONTENT
    drive.faults = [answer_page(page)]
    assert fetch(URL, tmp_path / "a.zip", DIGEST, retries=ONCE).size == len(CONTENT)


def test_a_lost_connection_resumes(drive: FileServer, tmp_path: Path) -> None:
    drive.faults = [cut_after(1_000_000)]
    with pytest.raises(DownloadError, match=r"the download failed: .* run the same command again to resume"):
        fetch(URL, tmp_path / "a.zip", DIGEST, retries=ONCE)
    assert not (tmp_path / "a.zip").exists()
    assert fetch(URL, tmp_path / "a.zip", DIGEST, retries=ONCE).size == len(CONTENT)
    assert drive.ranges[-1].startswith("bytes=")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_changed_file_starts_again(drive: FileServer, tmp_path: Path) -> None:
    drive.has_validators = False
    drive.headers = {**HEAD, "Last-Modified": "Mon, 23 Nov 2026 01:00:00 GMT"}
    drive.faults = [cut_after(1_000_000)]
    with pytest.raises(DownloadError):
        fetch(URL, tmp_path / "a.zip", retries=ONCE)
    drive.has_ranges = False
    drive.faults = [change_file(FILE, OTHER)]
    assert fetch(URL, tmp_path / "a.zip", retries=ONCE).sha256 == hashlib.sha256(OTHER).hexdigest()


def test_a_private_file_or_a_used_up_quota_is_explained(drive: FileServer, tmp_path: Path) -> None:
    page = b'<html><p class="uc-error-subcaption">Too many users have viewed this file recently.</p></html>'
    drive.faults = [answer_page(page)]
    with pytest.raises(DownloadError, match=r"does not hand the file out: Too many users .* recently\. Open the addr"):
        fetch(URL, tmp_path / "a.zip", retries=ONCE)
    drive.headers = {"Content-Type": "text/html"}
    drive.faults = [answer_status(404, Content_Type="application/json", Content_Disposition="x")]
    with pytest.raises(DownloadError, match="the download failed: 404"):
        fetch(URL, tmp_path / "a.zip", retries=ONCE)


def test_another_file_than_expected_is_refused(drive: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="so it is another one and was deleted"):
        fetch(URL, tmp_path / "a.zip", "0" * 64, retries=ONCE)
    assert [path.name for path in tmp_path.iterdir()] == [".a.zip.lock"]


def test_without_gdown_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(PackageMissingError, match=r"Google Drive require gdown: run `pip install 'fedquilt\[data\]'`"):
        fetch(URL, tmp_path / "a.zip")


def test_a_file_above_the_limit_is_not_kept(drive: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadTooLargeError, match="larger than 100000 bytes"):
        fetch(URL, tmp_path / "new" / "a.zip", largest=100_000)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".a.zip.lock"]
