"""Downloads from servers whose answers are shorter, longer or other than announced."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.file_server import (
    Fault,
    FileServer,
    answer_bytes,
    answer_status,
    change_file,
    cut_after,
    serve_files,
)

from fedquilt_common.downloads.fetch import fetch
from fedquilt_common.downloads.retries import Retries
from fedquilt_common.errors import DownloadError

CONTENT = random.Random(0).randbytes(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = random.Random(1).randbytes(300_000)
AT_ONCE = Retries(attempts=3, first_wait=0.0)
SIZE, CUT = len(CONTENT), 100_000


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files({"/a.bin": CONTENT}) as running:
        yield running


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize(
    ("end", "total"),
    [(CUT + 1000, str(SIZE)), (SIZE, str(SIZE)), (SIZE, "*"), (CUT + 1000, "*")],
    ids=["clipped range", "lost connection", "unknown total", "clipped range of an unknown total"],
)
def test_a_resumed_download_that_ends_early_is_not_complete(
    server: FileServer, tmp_path: Path, end: int, total: str
) -> None:
    answer = answer_bytes(206, CONTENT[CUT : CUT + 1000], Content_Range=f"bytes {CUT}-{end - 1}/{total}")
    server.faults = [cut_after(CUT), answer]
    assert fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE).sha256 == DIGEST
    assert server.ranges == ["", f"bytes={CUT}-", f"bytes={CUT + 1000}-"]


def test_a_range_of_an_unknown_total_is_complete_at_its_end(server: FileServer, tmp_path: Path) -> None:
    chunk = b"%x\r\n%s\r\n" % (CUT, CONTENT[:CUT])  # without the last one: the connection is lost
    first = answer_bytes(200, chunk, Transfer_Encoding="chunked", ETag=server.etag("/a.bin"))
    server.faults = [first, answer_bytes(206, CONTENT[CUT:][:1000], Content_Range=f"bytes {CUT}-{SIZE - 1}/*")]
    assert fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE).sha256 == DIGEST
    assert server.ranges == ["", f"bytes={CUT}-", f"bytes={CUT + 1000}-"]


def test_a_download_ends_at_the_expected_size(server: FileServer, tmp_path: Path) -> None:
    server.faults = [answer_bytes(200, bytes(50 << 20))]
    seen = list[int]()
    with pytest.raises(DownloadError, match="sends more than the 1000 bytes of the file, so it is another one"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", DIGEST, 1000, lambda done, _: seen.append(done))
    assert max(seen, default=0) <= 1000
    assert names(tmp_path) == []


def test_a_range_that_is_longer_than_the_file_is_refused(server: FileServer, tmp_path: Path) -> None:
    longer = answer_bytes(206, CONTENT, Content_Range=f"bytes {CUT}-{SIZE - 1}/{SIZE}")
    server.faults = [cut_after(CUT), longer]
    with pytest.raises(DownloadError, match=f"sends more than the {SIZE} bytes of the file"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE)
    assert names(tmp_path) == []


def test_a_server_that_cuts_and_ignores_where_a_range_begins_is_given_up(server: FileServer, tmp_path: Path) -> None:
    from_the_start = answer_bytes(206, CONTENT[:CUT], Content_Range=f"bytes 0-{SIZE - 1}/{SIZE}")
    server.faults = [cut_after(CUT), from_the_start] * 10
    with pytest.raises(DownloadError, match=r"failed 3 times in a row: .*run the same command again to resume"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", DIGEST, retries=AT_ONCE)
    assert len(server.requests) == 3


def test_mixed_versions_twice_in_a_row_are_an_error_and_leave_nothing(server: FileServer, tmp_path: Path) -> None:
    server.has_validators = False
    server.files["/a.bin"] = OTHER
    server.faults = [cut_after(CUT), change_file("/a.bin", CONTENT), cut_after(CUT), change_file("/a.bin", OTHER)]
    with pytest.raises(DownloadError, match=f"has the SHA-256 .* instead of {DIGEST}, so it is another one"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", DIGEST, retries=AT_ONCE)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("variable", "proxy", "words"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9", "SOCKS proxy .* requires the package socksio"),
        ("HTTP_PROXY", "foo://127.0.0.1:9", "names a proxy that cannot be used .*Correct the variable"),
        ("HTTP_PROXY", "http://[::1", "names a proxy that cannot be used .*Correct the variable"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    variable: str, proxy: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(DownloadError, match=words):
        fetch("http://127.0.0.1:1/a.bin", tmp_path / "a.bin", retries=AT_ONCE)


@pytest.mark.parametrize("wait", ["\u00b2", "9" * 5000, "-1", "0.5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_strange_wait_is_ignored(server: FileServer, tmp_path: Path, wait: str) -> None:
    server.faults = [answer_status(503, Retry_After=wait)]
    assert fetch(server.url("/a.bin"), tmp_path / "a.bin", DIGEST, retries=AT_ONCE).size == SIZE


def test_an_empty_answer_is_no_file(server: FileServer, tmp_path: Path) -> None:
    server.faults = [answer_bytes(200, b"", Content_Length="0")]
    with pytest.raises(DownloadError, match=r"a\.bin: the server's file is empty \(0 bytes\), so it was deleted"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE)
    assert names(tmp_path) == []
    (tmp_path / "a.bin").write_bytes(b"")
    assert fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE).sha256 == DIGEST


def test_a_file_that_is_empty_as_published_is_one(server: FileServer, tmp_path: Path) -> None:
    server.files["/a.bin"] = b""
    digest = hashlib.sha256(b"").hexdigest()
    assert fetch(server.url("/a.bin"), tmp_path / "a.bin", digest, retries=AT_ONCE).size == 0
    assert fetch(server.url("/a.bin"), tmp_path / "b.bin", None, 0, retries=AT_ONCE).size == 0
    assert fetch(server.url("/a.bin"), tmp_path / "b.bin", digest, 0, retries=AT_ONCE).was_there


@pytest.mark.parametrize("fault", [answer_status(404), answer_bytes(200, b"", Content_Length="0"), cut_after(CUT)])
def test_a_password_in_the_address_is_not_shown(server: FileServer, tmp_path: Path, fault: Fault) -> None:
    server.faults = [fault] * 3
    url = server.url("/a.bin").replace("://", "://user:secret@")
    with pytest.raises(DownloadError) as error:
        fetch(url, tmp_path / "a.bin", retries=Retries(attempts=1))
    assert str(error.value).startswith(server.url("/a.bin").replace("http://", "...@"))
    assert "secret" not in str(error.value)
    assert "secret" not in "".join(path.read_text() for path in tmp_path.glob("*.json"))


@pytest.mark.parametrize("mark", "#/?")
def test_a_password_that_makes_the_address_invalid_is_not_shown(mark: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as error:
        fetch(f"http://user:sec{mark}ret@127.0.0.1:9/a.bin", tmp_path / "a.bin", retries=Retries(attempts=1))
    assert "sec" not in str(error.value).replace("seconds", "")
    assert "...@127.0.0.1:9/a.bin" in str(error.value)
