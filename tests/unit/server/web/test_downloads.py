"""Downloads from the run folder over real HTTP: what is missing, what is replaced meanwhile, and who may have them."""

from __future__ import annotations

import hashlib
import io
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from fedquilt_common.files.durable import write_atomically
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.runs.blob_store import BLOBS, BlobStore
from fedquilt_server.runs.journal import Journal, StoredCheckpoint, Traffic
from fedquilt_server.status.run_file_names import JOURNAL
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web import connections as connections_module
from fedquilt_server.web.access import Access
from fedquilt_server.web.connections import SEND_BUFFER
from fedquilt_server.web.downloads import BLOCK, _blocks
from fedquilt_server.web.server import PageServer

LARGE = 40 * (SEND_BUFFER + BLOCK)
"""Bytes that fit in no buffer: most of them are still on disk when a visitor has the first ones."""
TOKEN = "a-token-of-some-length"  # noqa: S105


class Recorder:
    """Writes checkpoints as a coordinator does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._journal = Journal(folder / JOURNAL)
        self._blobs = BlobStore(folder / BLOBS)
        self.close = self._journal.close

    def save(self, round: int, arrays: Arrays) -> str:
        """Save a round's model, and delete all earlier ones; returns the model's SHA-256."""
        digest = self._blobs.put(arrays).digest
        self._journal.save(StoredCheckpoint(round, 0, digest, "", 0.0, "", None, Traffic()))
        self._blobs.clean({digest}, reuse=True)
        return self._blobs.sha256(digest)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def recorder(folder: Path) -> Iterator[Recorder]:
    with closing(Recorder(folder)) as made:
        yield made


@pytest.fixture
def open_page(folder: Path) -> Iterator[Callable[..., httpx.Client]]:
    with ExitStack() as opened:

        def start(**options: object) -> httpx.Client:
            store = StatusStore(Snapshot(name='di"gits/7 fedavg'))
            server = opened.enter_context(PageServer(store, folder=folder, **options))  # type: ignore[arg-type]
            return opened.enter_context(httpx.Client(base_url=server.url, timeout=60))

        yield start


@pytest.fixture
def web(open_page: Callable[..., httpx.Client]) -> httpx.Client:
    return open_page()


def model(value: float, size: int = 4) -> Arrays:
    return {"w": np.full(size, value, np.float32)}


def reason(web: httpx.Client, path: str) -> str:
    response = web.get(path)
    assert response.status_code == 404
    return str(response.json()["detail"])


def test_what_is_not_there_yet_has_a_reason(web: httpx.Client, folder: Path) -> None:
    assert "No round is finished" in reason(web, "/api/v1/model")
    assert "no result.json yet" in reason(web, "/api/v1/result")
    assert "no replies.csv yet" in reason(web, "/api/v1/files/replies.csv")
    assert web.get("/api/v1/files/page-token").status_code == 422
    with closing(Recorder(folder)) as recorder:
        recorder.save(0, model(0.0))
        assert "No round is finished" in reason(web, "/api/v1/model")


def test_the_newest_model_has_its_round_in_its_name(web: httpx.Client, recorder: Recorder, tmp_path: Path) -> None:
    for number in (0, 1, 2):
        digest = recorder.save(number, model(number))
    response = web.get("/api/v1/model")
    assert response.headers["content-disposition"] == 'attachment; filename="di-gits-7-fedavg-round-2.safetensors"'
    assert response.headers["etag"] == f'"{digest}"'
    (tmp_path / "model").write_bytes(response.content)
    assert FileArrays(tmp_path / "model")["w"].tolist() == [2.0] * 4


def test_a_reader_that_has_the_model_does_not_get_it_again(web: httpx.Client, recorder: Recorder) -> None:
    digest = recorder.save(1, model(1.0))
    for has in (f'"{digest}"', f'W/"{digest}"', f'"other", W/"a,b" ,"{digest}"', "*"):
        response = web.get("/api/v1/model", headers={"If-None-Match": has})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", f'"{digest}"'), has
        assert "content-disposition" not in response.headers
    two = web.get("/api/v1/model", headers=[("If-None-Match", '"other"'), ("If-None-Match", f'"{digest}"')])
    assert two.status_code == 304
    for other in ("", '"other"', digest, f'"{digest}x"', f'"{digest[:-1]}"', '"*"'):
        assert web.get("/api/v1/model", headers={"If-None-Match": other}).status_code == 200, other
    recorder.save(2, model(2.0))
    assert web.get("/api/v1/model", headers={"If-None-Match": f'"{digest}"'}).status_code == 200


def test_a_download_goes_on_with_the_model_with_which_it_began(web: httpx.Client, recorder: Recorder) -> None:
    digest = recorder.save(1, model(1.0, LARGE // 4))
    with web.stream("GET", "/api/v1/model") as response:
        blocks = response.iter_bytes(BLOCK)
        read = [next(blocks)]
        newer = recorder.save(2, model(2.0, LARGE // 4))
        read += blocks
    assert hashlib.sha256(b"".join(read)).hexdigest() == digest
    assert hashlib.sha256(web.get("/api/v1/model").content).hexdigest() == newer


def test_a_file_that_is_replaced_or_grows_is_not_mixed(web: httpx.Client, folder: Path) -> None:
    folder.mkdir()
    path = folder / "result.json"
    path.write_text("a" * LARGE)
    with web.stream("GET", "/api/v1/result") as response:
        blocks = response.iter_text(BLOCK)
        read = [next(blocks)]
        with path.open("a") as file:
            file.write("c" * LARGE)
        write_atomically(path, "b" * LARGE)
        read += blocks
    assert "".join(read) == "a" * LARGE


def test_a_log_that_grows_is_sent_up_to_its_announced_size() -> None:
    grown = io.BytesIO(b"a" * (BLOCK + 10) + b"b" * BLOCK)
    assert b"".join(_blocks(grown, BLOCK + 10)) == b"a" * (BLOCK + 10)


def test_an_algorithm_without_a_global_model_has_none_to_send(web: httpx.Client, recorder: Recorder) -> None:
    recorder.save(1, {})
    assert "no global model: each client keeps its own" in reason(web, "/api/v1/model")


def test_a_copy_of_a_finished_run_needs_no_blobs(web: httpx.Client, recorder: Recorder, folder: Path) -> None:
    digest = recorder.save(1, model(1.0))
    (blob,) = (path for path in (folder / BLOBS).iterdir() if path.is_file())
    blob.rename(folder / "global.safetensors")
    assert hashlib.sha256(web.get("/api/v1/model").content).hexdigest() == digest


@pytest.mark.parametrize("named", ["../secret", "/etc/passwd", ""])
def test_a_damaged_journal_leads_nowhere(named: str, web: httpx.Client, recorder: Recorder, folder: Path) -> None:
    recorder.save(1, model(1.0))
    (folder / "secret").write_bytes(bytes(99))
    with closing(sqlite3.connect(folder / JOURNAL)) as db, db:
        db.execute("UPDATE checkpoints SET arrays = ?", (named,))
    assert "it is damaged" in reason(web, "/api/v1/model")
    (folder / JOURNAL).write_text("no journal")
    assert web.get("/api/v1/model").status_code == 404


def test_a_link_out_of_the_folder_is_not_followed(web: httpx.Client, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder.mkdir()
    (folder / "boards.csv").symlink_to(tmp_path / "secret")
    assert "no boards.csv yet" in reason(web, "/api/v1/files/boards.csv")


def test_who_may_not_read_the_page_gets_no_model(open_page: Callable[..., httpx.Client], recorder: Recorder) -> None:
    recorder.save(1, model(1.0))
    web = open_page(access=Access(TOKEN, reads_need_token=True))
    for path in ("/api/v1/model", "/api/v1/result", "/api/v1/files/rounds.csv"):
        assert web.get(path).status_code == 401
    assert web.get("/api/v1/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_visitor_with_a_slow_link_gets_the_whole_model(
    web: httpx.Client, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = recorder.save(1, model(1.0, LARGE // 4))
    monkeypatch.setattr(connections_module, "RESPONSE_SECONDS", 0.5)
    begun, read = time.monotonic(), hashlib.sha256()
    with web.stream("GET", "/api/v1/model") as response:
        for block in response.iter_bytes(BLOCK):
            read.update(block)
            time.sleep(len(block) / LARGE)  # a second in all
    assert time.monotonic() - begun > 0.5
    assert read.hexdigest() == digest


def test_open_downloads_are_bounded_and_leave_no_file_open(
    open_page: Callable[..., httpx.Client], recorder: Recorder, folder: Path
) -> None:
    digest = recorder.save(1, model(1.0, LARGE // 4))
    web = open_page(connections=4)
    with ExitStack() as reading:
        for _ in range(2):
            reading.enter_context(web.stream("GET", "/api/v1/model"))
        refused = web.get("/api/v1/model")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    end = time.monotonic() + 60
    while str(folder / BLOBS / digest) in {file.path for file in psutil.Process().open_files()}:
        assert time.monotonic() < end, "a download that a visitor has left keeps its file open"
        time.sleep(0.02)


def test_the_page_has_links_to_what_can_be_downloaded(web: httpx.Client, recorder: Recorder) -> None:
    page = web.get("/").text
    for path in ("model", "result", "files/rounds.csv", "files/replies.csv", "files/telemetry.csv"):
        assert f'href="api/v1/{path}"' in page
    with PageServer(StatusStore()) as bare:
        assert "api/v1/model" not in httpx.get(bare.url).text
