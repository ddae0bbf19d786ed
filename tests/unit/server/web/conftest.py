"""What all tests of the page share."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from unittest import mock

import httpx
import pytest
from tests.support.page_snapshots import snapshot

from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.server import PageServer

create_ssl_context = functools.cache(httpx.create_ssl_context)


@pytest.fixture(scope="module", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Load the certificates once: every client would, also for plain HTTP, and that takes as long as a page's start."""
    with mock.patch.object(httpx._transports.default, "create_ssl_context", create_ssl_context):
        yield


@pytest.fixture
def store() -> StatusStore:
    return StatusStore(snapshot())


@pytest.fixture
def server(store: StatusStore) -> Iterator[PageServer]:
    with PageServer(store) as running:
        yield running


@pytest.fixture
def web(server: PageServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
