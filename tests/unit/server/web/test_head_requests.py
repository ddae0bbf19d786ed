"""HEAD over real HTTP: the status and headers of GET without a body, on both pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.page_snapshots import snapshot
from tests.support.recorded_runs import write_run

from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.access import Access
from fedquilt_server.web.library_app import create_library_app
from fedquilt_server.web.server import PageServer, WebServer

TOKEN = "a-token-of-some-length"  # noqa: S105
CHANGING = {"date", "content-length"}
"""Headers that differ between two requests: pages name their frame, whose number has more digits each time."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "digits")
    return folder


@pytest.fixture(scope="module")
def coordinator(runs: Path) -> Iterator[httpx.Client]:
    server = PageServer(StatusStore(snapshot()), folder=runs / "digits", connections=8)
    with server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def library(runs: Path) -> Iterator[httpx.Client]:
    server = WebServer(lambda names: create_library_app(RunLibrary(runs), names))
    with server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def check_head(client: httpx.Client, path: str) -> None:
    for encoding in ("gzip", "identity"):
        accept = {"Accept-Encoding": encoding}
        head, get = client.head(path, headers=accept), client.get(path, headers=accept)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert set(head.headers) == set(get.headers), path
        same = head.headers.keys() - CHANGING
        assert {name: head.headers[name] for name in same} == {name: get.headers[name] for name in same}, path
        assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/metrics", "/api/v1/snapshot", "/api/v1/result", "/api/v1/model", "/api/v1/runs",
             "/openapi.json", "/static/page.css", "/nothing"],
)  # fmt: skip
def test_the_page_of_a_coordinator_serves_head(path: str, coordinator: httpx.Client) -> None:
    check_head(coordinator, path)


@pytest.mark.parametrize(
    "path",
    ["/", "/healthz", "/compare", "/api/v1/runs", "/runs/digits/", "/runs/digits/api/v1/result", "/static/page.css"],
)
def test_the_page_of_a_folder_serves_head(path: str, library: httpx.Client) -> None:
    check_head(library, path)


@pytest.mark.parametrize("path", ["/api/v1/rounds", "/api/v1/result", "/static/page.css"])
def test_the_length_is_that_of_the_body(path: str, coordinator: httpx.Client) -> None:
    accept = {"Accept-Encoding": "identity"}
    assert int(coordinator.head(path, headers=accept).headers["content-length"]) == len(coordinator.get(path).content)


def test_streams_end_and_give_their_place_back(coordinator: httpx.Client) -> None:
    for path in ("/events", "/api/v1/stream") * 8:
        response = coordinator.head(path)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-type"].startswith("text/event-stream")


def test_a_file_of_any_size_is_closed(runs: Path, coordinator: httpx.Client) -> None:
    path = runs / "digits" / "replies.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    for _ in range(8):
        assert coordinator.head("/api/v1/files/replies.csv").headers["content-length"] == str(1 << 40)
    assert coordinator.get("/healthz").status_code == 200
    end = time.monotonic() + 60
    while str(path) in {file.path for file in psutil.Process().open_files()}:
        assert time.monotonic() < end, "the file of a response to HEAD stays open"
        time.sleep(0.02)
    path.unlink()


def test_other_methods_are_still_refused(coordinator: httpx.Client) -> None:
    assert coordinator.put("/").status_code == 405
    assert coordinator.head("/control").status_code == 404


def test_head_needs_the_token_as_get_does() -> None:
    with PageServer(StatusStore(snapshot()), access=Access(TOKEN, reads_need_token=True)) as server:
        assert httpx.head(server.url).status_code == 401
        assert httpx.head(server.url, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
