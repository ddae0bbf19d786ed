"""Downloads from a real web server that cuts, changes and refuses."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.file_server import (
    FileServer,
    answer_status,
    change_file,
    cut_after,
    drop_connection,
    serve_files,
)

from fedquilt_common.downloads.fetch import FetchedFile, fetch
from fedquilt_common.downloads.retries import Retries
from fedquilt_common.errors import (
    DownloadError,
    DownloadTooLargeError,
    FolderInUseError,
    PackageMissingError,
    RunFolderError,
)

CONTENT = random.Random(0).randbytes(1_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = random.Random(1).randbytes(1_000_000)
AT_ONCE = Retries(attempts=3, first_wait=0.0)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files({"/a.bin": CONTENT}) as running:
        yield running


def get(server: FileServer, folder: Path, sha256: str | None = DIGEST, size: int | None = None) -> FetchedFile:
    return fetch(server.url("/a.bin"), folder / "new" / "a.bin", sha256, size, retries=AT_ONCE)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "new").iterdir())


def test_a_download_is_checked_and_leaves_nothing_else(server: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "a.bin"
    file = fetch(server.url("/a.bin"), target, DIGEST, len(CONTENT), lambda done, total: seen.append((done, total)))
    assert file == FetchedFile(target, len(CONTENT), DIGEST)
    assert (target.read_bytes(), names(tmp_path)) == (CONTENT, ["a.bin"])
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_file_that_is_there_is_not_downloaded_again(server: FileServer, tmp_path: Path) -> None:
    first = get(server, tmp_path)
    assert (get(server, tmp_path).was_there, first.was_there, len(server.requests)) == (True, False, 1)


def test_a_wrong_file_of_the_name_is_replaced(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.bin").write_bytes(OTHER)
    assert not get(server, tmp_path).was_there
    assert (tmp_path / "new" / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("count", [0, 1, 300_000, len(CONTENT) - 1])
@pytest.mark.parametrize("sha256", [DIGEST, None])
def test_a_lost_connection_resumes_where_it_was(
    server: FileServer, tmp_path: Path, count: int, sha256: str | None
) -> None:
    server.faults = [cut_after(count), cut_after(0), drop_connection]
    file = fetch(server.url("/a.bin"), tmp_path / "new" / "a.bin", sha256, retries=Retries(5, 0.0))
    assert (file.sha256, names(tmp_path)) == (DIGEST, ["a.bin"])
    assert server.ranges == ["", *[f"bytes={count}-" if count else ""] * 3]


def test_an_end_without_the_announced_bytes_never_looks_finished(server: FileServer, tmp_path: Path) -> None:
    server.faults = [cut_after(400_000)] + [cut_after(0)] * 3
    with pytest.raises(DownloadError, match=r"failed 3 times in a row: .*\. Check the network, then run the same"):
        get(server, tmp_path, None)
    assert names(tmp_path) == [".a.bin.lock", "a.bin.part", "a.bin.part.json"]
    assert get(server, tmp_path, None).sha256 == DIGEST
    assert server.ranges[-1] == "bytes=400000-"
    assert names(tmp_path) == ["a.bin"]


def test_attempts_count_anew_after_progress(server: FileServer, tmp_path: Path) -> None:
    server.faults = [cut_after(10_000)] * 8
    assert get(server, tmp_path).sha256 == DIGEST


def test_a_server_without_ranges_starts_again(server: FileServer, tmp_path: Path) -> None:
    server.has_ranges = False
    server.faults = [cut_after(400_000)]
    assert get(server, tmp_path, None).sha256 == DIGEST
    assert server.ranges == ["", "bytes=400000-"]


def test_a_changed_file_starts_again(server: FileServer, tmp_path: Path) -> None:
    server.faults = [cut_after(400_000), change_file("/a.bin", OTHER)]
    assert get(server, tmp_path, None).sha256 == hashlib.sha256(OTHER).hexdigest()
    assert (tmp_path / "new" / "a.bin").read_bytes() == OTHER


def test_without_a_validator_only_a_known_digest_resumes(server: FileServer, tmp_path: Path) -> None:
    server.has_validators = False
    server.faults = [cut_after(400_000)]
    assert get(server, tmp_path, None).sha256 == DIGEST
    assert server.ranges == ["", ""]
    server.faults = [cut_after(400_000)]
    fetch(server.url("/a.bin"), tmp_path / "b.bin", DIGEST, retries=AT_ONCE)
    assert server.ranges[2:] == ["", "bytes=400000-"]


def test_a_weak_etag_is_no_validator(server: FileServer, tmp_path: Path) -> None:
    """Servers never match it in ``If-Range`` (RFC 9110, 13.1.5), so that each attempt would start again."""
    server.has_validators = False
    server.headers = {"ETag": 'W/"1"', "Last-Modified": "Mon, 30 Nov 2026 14:00:00 GMT"}
    server.faults = [cut_after(400_000)]
    seen: list[int] = []
    fetch(server.url("/a.bin"), tmp_path / "a.bin", None, None, lambda done, _: seen.append(done), AT_ONCE)
    assert server.ranges == ["", "bytes=400000-"]
    assert seen == sorted(seen)
    server.headers = {"ETag": 'W/"1"'}
    server.faults = [cut_after(400_000)]
    assert get(server, tmp_path, None).sha256 == DIGEST
    assert server.ranges[2:] == ["", ""]


def test_mixed_versions_are_found_by_the_digest(server: FileServer, tmp_path: Path) -> None:
    """Without validators, a resumed download can join two versions; it then starts again."""
    server.has_validators = False
    server.files["/a.bin"] = OTHER
    server.faults = [cut_after(400_000), change_file("/a.bin", CONTENT)]
    assert get(server, tmp_path).sha256 == DIGEST
    assert server.ranges == ["", "bytes=400000-", ""]
    assert (tmp_path / "new" / "a.bin").read_bytes() == CONTENT


def test_a_part_of_another_address_is_not_resumed(server: FileServer, tmp_path: Path) -> None:
    server.files["/b.bin"] = OTHER
    server.faults = [cut_after(400_000)] + [cut_after(0)] * 3
    with pytest.raises(DownloadError):
        fetch(server.url("/b.bin"), tmp_path / "new" / "a.bin", retries=AT_ONCE)
    assert get(server, tmp_path, None).sha256 == DIGEST
    assert server.ranges[-1] == ""


def test_addresses_that_differ_before_an_at_sign_are_different(server: FileServer, tmp_path: Path) -> None:
    """What messages show instead of a password is no address."""
    server.files |= {"/one/@scope/a.bin": OTHER, "/two/@scope/a.bin": CONTENT}
    server.faults = [cut_after(400_000)] + [cut_after(0)] * 2
    with pytest.raises(DownloadError):
        fetch(server.url("/one/@scope/a.bin"), tmp_path / "a.bin", DIGEST, retries=AT_ONCE)
    assert fetch(server.url("/two/@scope/a.bin"), tmp_path / "a.bin", DIGEST, retries=AT_ONCE).sha256 == DIGEST
    assert server.ranges[3:] == [""]


def test_a_complete_part_needs_no_more_bytes(server: FileServer, tmp_path: Path) -> None:
    get(server, tmp_path)
    (tmp_path / "new" / "a.bin").rename(tmp_path / "new" / "a.bin.part")
    (tmp_path / "new" / "a.bin.part.json").write_text(
        f'{{"url": "{server.url("/a.bin")}", "validator": "", "total": null}}'
    )
    assert get(server, tmp_path).sha256 == DIGEST
    assert server.ranges == ["", f"bytes={len(CONTENT)}-"]


def test_a_part_that_is_longer_than_the_file_is_discarded(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "new" / "a.bin.part.json").write_text(
        f'{{"url": "{server.url("/a.bin")}", "validator": "", "total": null}}'
    )
    assert get(server, tmp_path).sha256 == DIGEST


@pytest.mark.parametrize("note", ["", "{", "[]", '{"url": 1}', "null"])
def test_a_damaged_note_is_not_trusted(server: FileServer, tmp_path: Path, note: str) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.bin.part").write_bytes(OTHER[:1000])
    (tmp_path / "new" / "a.bin.part.json").write_text(note)
    assert get(server, tmp_path, None).sha256 == DIGEST


def test_another_file_than_expected_is_refused_and_deleted(server: FileServer, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(DownloadError, match=rf"has the SHA-256 {DIGEST} instead of {wrong}, so it is another one"):
        get(server, tmp_path, wrong)
    assert "a.bin" not in names(tmp_path)
    assert "a.bin.part" not in names(tmp_path)


def test_a_file_of_another_size_is_refused_before_its_bytes_come(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="the server's file has 1000000 bytes instead of 7"):
        get(server, tmp_path, size=7)
    assert not any(path.endswith(".part") for path in names(tmp_path))


def test_a_server_that_is_busy_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.faults = [answer_status(503, Retry_After="0"), answer_status(429), drop_connection]
    assert fetch(server.url("/a.bin"), tmp_path / "a.bin", DIGEST, retries=Retries(4, 0.0)).sha256 == DIGEST


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no such file any more"), (403, "refuses access"), (401, "requires an account")]
)
def test_refusals_are_explained_at_once(server: FileServer, tmp_path: Path, status: int, words: str) -> None:
    server.faults = [answer_status(status)]
    with pytest.raises(DownloadError, match=rf"the server answers {status}, so .*{words}"):
        get(server, tmp_path)
    assert len(server.requests) == 1


def test_a_login_page_is_not_a_data_set(server: FileServer, tmp_path: Path) -> None:
    server.files["/login?next=secret"] = b"<html>please log in</html>"
    server.headers = {"Content-Type": "text/html; charset=utf-8"}
    server.faults = [answer_status(302, Location="/login?next=secret")]
    with pytest.raises(DownloadError, match=r"web page at http://127.0.0.1:\d+/login instead of a.bin; probably it"):
        get(server, tmp_path, None)
    assert names(tmp_path) == [".a.bin.lock"]


def test_endless_redirects_and_other_addresses_are_errors(server: FileServer, tmp_path: Path) -> None:
    server.faults = [answer_status(302, Location="/a.bin")] * 50
    for url in (server.url("/a.bin"), "ftp://127.0.0.1/a.bin", "no address", "http://[::1"):
        with pytest.raises(DownloadError, match="correct the address"):
            fetch(url, tmp_path / "a.bin", retries=AT_ONCE)


def test_a_server_that_packs_on_the_way_is_refused(server: FileServer, tmp_path: Path) -> None:
    server.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(DownloadError, match="packs the file on its way"):
        get(server, tmp_path)
    server.files["/a.tar.gz"] = CONTENT  # some servers describe the file itself
    assert fetch(server.url("/a.tar.gz"), tmp_path / "a.tar.gz", DIGEST).size == len(CONTENT)


def test_nobody_answers(tmp_path: Path) -> None:
    with serve_files() as gone:
        url = gone.url("/a.bin")
    with pytest.raises(DownloadError, match=r"failed 3 times in a row: .*refused"):
        fetch(url, tmp_path / "a.bin", retries=AT_ONCE)


def test_a_full_disk_is_found_before_the_transfer(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1000))
    with pytest.raises(RunFolderError, match=r"No space left on device\. Free disk space"):
        get(server, tmp_path)
    assert (tmp_path / "new" / "a.bin.part").stat().st_size == 0


def test_a_resumed_download_needs_space_for_its_rest_only(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "new" / "a.bin.part"
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, len(CONTENT) - part.stat().st_size))
    server.faults = [cut_after(900_000)]
    assert get(server, tmp_path).sha256 == DIGEST
    assert server.ranges == ["", "bytes=900000-"]


def test_a_disk_that_fills_up_meanwhile_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=r"No space left on device.*run the same command again$"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE)
    assert not (tmp_path / "a.bin").exists()
    assert len(server.requests) == 1


def test_a_folder_that_cannot_be_written_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").mkdir()
    with pytest.raises(RunFolderError, match="cannot be used: Is a directory"):
        fetch(server.url("/a.bin"), tmp_path / "a.bin", retries=AT_ONCE)


def test_without_httpx_the_message_names_the_extra(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fedquilt_common.downloads.http_transfer", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(PackageMissingError, match=r"downloads require httpx: run `pip install 'fedquilt\[data\]'`"):
        get(server, tmp_path)


def test_two_at_once_download_one_file_once(server: FileServer, tmp_path: Path) -> None:
    found: list[FetchedFile] = []
    threads = [threading.Thread(target=lambda: found.append(get(server, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file.was_there for file in found) == [False, True, True, True]
    assert (len(server.requests), names(tmp_path)) == (1, ["a.bin"])


def test_killed_at_any_moment_it_resumes(server: FileServer, tmp_path: Path) -> None:
    """A process that is killed while it downloads leaves a part, never a file under the final name."""
    gate = threading.Event()

    def stall(state: FileServer, answer: object) -> bool:
        cut_after(600_000)(state, answer)  # type: ignore[arg-type]
        gate.wait(60)
        return True

    server.faults = [stall]
    code = (
        "import sys; from pathlib import Path; from fedquilt_common.downloads.fetch import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2]))"
    )
    target = tmp_path / "new" / "a.bin"
    child = subprocess.Popen([sys.executable, "-c", code, server.url("/a.bin"), str(target)])
    part = target.with_name("a.bin.part")
    while not part.is_file() or part.stat().st_size < 500_000:
        assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    gate.set()
    assert not target.exists()
    held = part.stat().st_size
    assert get(server, tmp_path, None).sha256 == DIGEST
    assert server.ranges[-1] == f"bytes={held}-"


def test_a_folder_that_is_a_file_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("a file")
    with pytest.raises(FolderInUseError, match="is a file, not a folder"):
        get(server, tmp_path)


def test_a_file_above_the_limit_is_not_downloaded_whole(server: FileServer, tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(DownloadTooLargeError, match="larger than 100000 bytes"):
        fetch(
            server.url("/a.bin"),
            tmp_path / "new" / "a.bin",
            on_progress=lambda done, _: seen.append(done),
            largest=10**5,
        )
    assert (names(tmp_path), seen) == ([".a.bin.lock"], [])
    assert fetch(server.url("/a.bin"), tmp_path / "new" / "a.bin", DIGEST, largest=len(CONTENT)).size == len(CONTENT)
