"""Which responses are compressed over real HTTP, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.example_runs import running

from fedquilt_server.status.run_file_names import RESULT
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.compression import SMALLEST
from fedquilt_server.web.server import PageServer

PLAIN = {"accept-encoding": "identity"}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[httpx.Client]:
    (tmp_path / RESULT).write_text("{}" + " " * SMALLEST)
    store = StatusStore(running(40))
    with PageServer(store, folder=tmp_path) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def test_the_page_and_the_api_are_compressed_for_who_accepts_it(web: httpx.Client) -> None:
    for path in ("/", "/api/v1/boards"):
        packed, plain = web.get(path), web.get(path, headers=PLAIN)
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert int(packed.headers["content-length"]) < len(packed.content) / 4
        assert "content-encoding" not in plain.headers
    assert packed.content == plain.content


def test_streams_downloads_and_small_responses_are_not_compressed(web: httpx.Client) -> None:
    with web.stream("GET", "/events") as events:
        assert next(events.iter_raw()).startswith(b"event: ")
        assert "content-encoding" not in events.headers
    result = web.get("/api/v1/result")
    assert "content-encoding" not in result.headers
    assert int(result.headers["content-length"]) == len(result.content) > SMALLEST
    assert "content-encoding" not in web.get("/healthz").headers
