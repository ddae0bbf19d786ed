"""The page's server: its port and its addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from fedquilt_common.errors import FedquiltError
from fedquilt_server.status.page_listener import PageAddressError, PortInUseError
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.app import bare_app
from fedquilt_server.web.hosts import HostNames
from fedquilt_server.web.server import PageServer, WebServer


@pytest.fixture
def store() -> StatusStore:
    return StatusStore(Snapshot(broker_connected=True))


@pytest.fixture
def server(store: StatusStore) -> Iterator[PageServer]:
    with PageServer(store) as running:
        yield running


def test_a_taken_port_is_a_clear_error(server: PageServer, store: StatusStore) -> None:
    port = httpx.URL(server.url).port
    assert port is not None
    with pytest.raises(PortInUseError, match=rf"port {port} on 127\.0\.0\.1.*Choose another port"):
        PageServer(store, "127.0.0.1", port).start()
    assert issubclass(PortInUseError, FedquiltError)


def test_an_address_of_another_machine_is_a_clear_error(store: StatusStore) -> None:
    with pytest.raises(PageAddressError, match=r"cannot listen on 192\.0\.2\.1"):
        PageServer(store, "192.0.2.1").start()


def test_stop_before_start_is_harmless(store: StatusStore) -> None:
    PageServer(store).stop()


def test_url_of_all_addresses_can_be_opened(store: StatusStore) -> None:
    with PageServer(store, "0.0.0.0") as server:  # noqa: S104
        assert httpx.get(server.url + "healthz").status_code == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="needs a Python with IPv6")
def test_ipv6(store: StatusStore) -> None:
    server = PageServer(store, "::1")
    try:
        server.start()
    except PageAddressError as error:
        pytest.skip(f"needs the IPv6 loopback address ::1; enable IPv6 on this machine: {error}")
    try:
        assert httpx.get(server.url + "healthz").status_code == 200
    finally:
        server.stop()


def test_a_request_that_the_end_cuts_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    begun = threading.Event()

    async def answer_never() -> None:
        begun.set()
        await asyncio.sleep(600)

    def make_app(names: HostNames) -> FastAPI:
        app = bare_app("a page", "", names, None)
        app.add_api_route("/slow", answer_never)
        return app

    def visit(url: str) -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{url}slow", timeout=60)

    with WebServer(make_app) as server:
        visitor = threading.Thread(target=visit, args=(server.url,))
        visitor.start()
        assert begun.wait(60)
    visitor.join()
    written = capfd.readouterr().err
    assert "timeout graceful shutdown exceeded" in written
    assert "Traceback" not in written
