"""The page's connections: their number, their time, and visitors that do harm, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import psutil
import pytest
from tests.support.visitors import ATTACKS, EVENTS, HEAD, HEALTH, Visitors, attack, stops_at_once

from fedquilt_common.process.file_limit import raise_file_limit
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web import connections as connections_module
from fedquilt_server.web.connections import (
    MOST_CONNECTIONS,
    PageConnection,
    accept_backlog,
    choose_surplus,
    connection_limit,
)
from fedquilt_server.web.server import PageServer

PATIENCE = 60.0
BURST = 4
"""Turns of the event loop until a surplus connection is closed."""


@pytest.fixture
def store() -> StatusStore:
    return StatusStore(Snapshot(name="demo", phase="training", broker_connected=True))


@pytest.fixture
def server(store: StatusStore) -> Iterator[PageServer]:
    assert raise_file_limit() >= 2048, "this test opens 1,100 connections: raise the limit of open files (ulimit -n)"
    with PageServer(store) as running:
        yield running


def port_of(server: PageServer) -> int:
    port = httpx.URL(server.url).port
    assert port is not None
    return port


def wait_for(done: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, f"no {what} after {PATIENCE} seconds"
        time.sleep(0.02)


def pass_time(server: PageServer, seconds: float) -> None:
    """Let the clock of the page's event loop jump while a visitor is there."""
    loop = next(iter(server._server.server_state.connections)).loop
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
    loop.call_soon_threadsafe(lambda: None)


def ask(server: PageServer) -> int:
    """Ask for the health check on a connection of its own; try again, as a browser does, if it is closed."""
    for _ in range(4):
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(server.url + "healthz", timeout=PATIENCE).status_code
    return httpx.get(server.url + "healthz", timeout=PATIENCE).status_code


def drip_until_closed(visitors: Visitors, count: int, text: bytes = b"X-More: b\r\n") -> None:
    """Send ``text`` again and again until the page has closed ``count`` of the connections."""

    def enough() -> bool:
        visitors.drip(text)
        return visitors.closed() >= count

    wait_for(enough, f"end of {count} connections")


@pytest.mark.parametrize("files", [16, 64, 256, 1024, 4096, 1_000_000])
def test_the_page_opens_half_of_the_files_at_most(files: int) -> None:
    most = connection_limit(files)
    assert 4 <= most <= MOST_CONNECTIONS
    assert most + BURST * accept_backlog(most) <= files / 2
    assert connection_limit(1024) == MOST_CONNECTIONS


@pytest.mark.parametrize("name", ATTACKS)
def test_the_page_answers_during_an_attack_and_is_itself_again_after_it(name: str, server: PageServer) -> None:
    assert ask(server) == 200
    before = psutil.Process().num_fds()
    with attack(port_of(server), name) as visitors:
        visitors.drip(b"X-More: b\r\n")
        held = psutil.Process().num_fds() - before - ATTACKS[name][0]
        assert ask(server) == 200
        assert held <= MOST_CONNECTIONS + BURST * accept_backlog(MOST_CONNECTIONS)
    wait_for(lambda: psutil.Process().num_fds() <= before, "return of the descriptors")
    assert ask(server) == 200


def test_a_head_that_is_never_complete_ends_its_connection(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a connection that has had a response, and while a byte comes now and then."""
    monkeypatch.setattr(connections_module, "HEAD_SECONDS", 0.3)
    with Visitors(port_of(server)) as silent, Visitors(port_of(server)) as slow:
        silent.come(1)
        slow.come(1, HEAD)
        slow.come(1, HEALTH + HEAD)
        drip_until_closed(slow, 2)
        wait_for(silent.closed, "end of the silent connection")


def test_the_body_of_an_answered_request_may_not_drip_without_end(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "HEAD_SECONDS", 0.3)
    with Visitors(port_of(server)) as visitor:
        visitor.come(1, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")
        drip_until_closed(visitor, 1, b"x")


def big(store: StatusStore, megabytes: int) -> None:
    """Make a snapshot whose JSON no buffer holds."""
    store.update(boards=[BoardStatus(agent="a", kind="x" * 1_000_000) for _ in range(megabytes)])


STATUS = b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_response_that_is_not_taken_ends_its_connection(
    store: StatusStore, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "STALL_SECONDS", 0.3)
    big(store, 8)
    before = psutil.Process().num_fds()
    with Visitors(port_of(server)) as visitors:
        visitors.come(10, STATUS)
        wait_for(lambda: psutil.Process().num_fds() <= before + 10, "end of the connections")


def test_a_response_that_is_taken_too_slowly_ends_its_connection(
    store: StatusStore, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "STALL_SECONDS", 1e6)
    big(store, 8)
    with socket.create_connection(("127.0.0.1", port_of(server))) as visitor:
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        visitor.sendall(STATUS)
        taken = len(visitor.recv(4000))
        pass_time(server, connections_module.RESPONSE_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            while part := visitor.recv(4000):
                taken += len(part)
    assert 0 < taken < 8_000_000


def test_an_event_stream_outlives_all_limits(store: StatusStore, server: PageServer) -> None:
    with httpx.stream("GET", server.url + "events", timeout=PATIENCE) as stream:
        lines = stream.iter_lines()
        for _ in range(3):
            pass_time(server, connections_module.HEAD_SECONDS + connections_module.RESPONSE_SECONDS)
            store.update(round=store.current.round + 1)
            assert next(lines) is not None
        store.update(name="the last change")
        assert any("the last change" in line for line in lines)


def test_a_reader_that_does_not_take_the_events_is_dropped(
    store: StatusStore, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "STALL_SECONDS", 0.3)
    store.update(boards=[BoardStatus(agent=f"pi-{n}", reason="x" * 200) for n in range(400)])
    before = psutil.Process().num_fds()
    with Visitors(port_of(server)) as visitors:
        visitors.come(5, EVENTS)
        wait_for(lambda: visitors.answered() == 5, "streams")
        wait_for(lambda: psutil.Process().num_fds() <= before + 5, "end of the streams")


def test_more_event_streams_than_allowed_get_503(store: StatusStore) -> None:
    with PageServer(store, connections=8) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        with Visitors(port_of(server)) as readers:
            readers.come(4, EVENTS)
            wait_for(lambda: readers.answered() == 4, "streams")
            refusal = client.get("/events")
            assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "5")
            assert client.get("/healthz").status_code == 200

        def takes_a_reader() -> bool:
            with client.stream("GET", "/events") as stream:
                return stream.status_code == 200

        wait_for(takes_a_reader, "free stream")


def test_a_stream_that_was_only_asked_about_leaves_the_limits_in_force(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A HEAD request for the stream is complete at once; what follows on its connection is a usual request."""
    monkeypatch.setattr(connections_module, "HEAD_SECONDS", 0.3)
    with Visitors(port_of(server)) as visitor:
        visitor.come(1, EVENTS.replace(b"GET", b"HEAD") + HEAD)
        drip_until_closed(visitor, 1)


# --- who has to go ---------------------------------------------------------------------------------------


class Visitor:
    """A connection for ``choose_surplus``."""

    def __init__(self, number: int, *, waits: bool) -> None:
        self.number, self.waits_for_visitor = number, waits


@pytest.mark.parametrize(
    ("waits", "chosen"),
    [([True, True, True], 0), ([False, True, True], 1), ([False, False, True], 2), ([False, False, False], 3)],
)
def test_the_oldest_that_keeps_the_page_waiting_goes_else_the_newest(waits: list[bool], chosen: int) -> None:
    present = [Visitor(number, waits=wait) for number, wait in enumerate(waits)]
    newest = Visitor(3, waits=True)
    found = choose_surplus(cast("list[PageConnection]", [newest, *reversed(present)]), cast(PageConnection, newest))
    assert found.number == chosen


def test_a_busy_page_closes_the_newest_and_keeps_the_others(
    store: StatusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "HEAD_SECONDS", 1e6)
    server = PageServer(store, connections=4)
    with server, Visitors(port := port_of(server)) as readers, Visitors(port) as others:
        readers.come(2, EVENTS)
        wait_for(lambda: readers.answered() == 2, "streams")
        others.come(20)
        wait_for(lambda: others.closed() == 18, "end of the surplus connections")
        assert readers.closed() == 0
        assert ask(server) == 200


# --- the page's end --------------------------------------------------------------------------------------


def test_the_page_ends_at_once_with_many_visitors(store: StatusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "STALL_SECONDS", "RESPONSE_SECONDS"):
        monkeypatch.setattr(connections_module, name, 1e6)
    server = PageServer(store)
    server.start()
    with Visitors(port_of(server)) as visitors:
        visitors.come(50)
        visitors.come(50, HEAD)
        visitors.come(50, EVENTS)
        assert ask(server) == 200
        assert stops_at_once(server, monkeypatch)
        wait_for(lambda: visitors.closed() == 150, "end of all connections")


def test_an_error_of_the_server_ends_the_page_only(
    store: StatusStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = PageServer(store)

    async def fail(_: int) -> bool:
        await asyncio.sleep(0)
        raise OSError("no descriptors")

    server.start()
    monkeypatch.setattr(server._server, "on_tick", fail)
    wait_for(lambda: "A run continues without it" in caplog.text, "log")
    server.stop()
