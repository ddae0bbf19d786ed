"""The page answers only to names that no web site can have (DNS rebinding)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import typer

from fedquilt_server.cli import app as server_app
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.hosts import HostNames, host_name, is_trusted
from fedquilt_server.web.server import PageServer


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:8080", "localhost"),
        ("LAB.Example.ORG.", "lab.example.org"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:8080", "::1"),
        ("[fe80::1%eth0]", "fe80::1%eth0"),
        ("my_service", "my_service"),
        ("", ""),
        (":8080", ""),
        ("a..b", ""),
        ("a b", ""),
        ("<script>", ""),
        ("user@host", ""),
        ("localhost:80:80", ""),
        ("b\xfccher.de", ""),
    ],
)
def test_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "192.168.1.10", "::1", "localhost", "coordinator", "pi.local", "a.b.localhost", "lab.org"]
)
def test_names_that_no_web_site_can_have_are_trusted(name: str) -> None:
    assert is_trusted(name, {"lab.org"})


@pytest.mark.parametrize(
    "name",
    [
        "evil.com",
        "a.lab.org",
        "local.evil.com",
        "evil.com.local.de",
        "evil.notlocal",
        "evil.notlocalhost",
        "127.0.0.1.nip.io",
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_trusted(name, {"lab.org"})


def test_the_machines_own_names_are_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full name comes later: without a name server, the look-up takes long."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Desk.example.org")
    asked = threading.Event()

    def full_name() -> str:
        asked.wait()
        return "desk.lab.example.org"

    monkeypatch.setattr(socket, "getfqdn", full_name)
    names = HostNames(["run.example.org"])
    names.look_up()
    assert "desk.example.org" in names
    assert "run.example.org" in names
    assert "desk.lab.example.org" not in names
    asked.set()
    for thread in threading.enumerate():
        if thread.name == "host-name":
            thread.join()
    assert "desk.lab.example.org" in names


@pytest.fixture(scope="module")
def page() -> Iterator[PageServer]:
    with PageServer(StatusStore(), allowed_hosts=["Run.example.org"]) as server:
        yield server


def ask(page: PageServer, head: str) -> tuple[int, str]:
    """Send a request as it is; returns the status code and the body."""
    url = httpx.URL(page.url)
    assert url.port is not None
    with socket.create_connection((url.host, url.port), timeout=60) as visitor:
        visitor.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
        parts = []
        while part := visitor.recv(65536):
            parts.append(part)
    answer, _, body = b"".join(parts).decode().partition("\r\n\r\n")
    assert "content-security-policy" in answer or "Invalid HTTP" in body
    return int(answer.split()[1]), body


@pytest.mark.parametrize("path", ["/healthz", "/", "/api/status", "/static/page.js", "/metrics"])
@pytest.mark.parametrize("name", ["localhost:80", "127.0.0.1", "[::1]", "coordinator:8080", "run.example.org"])
def test_the_page_answers_to_these(page: PageServer, path: str, name: str) -> None:
    code, _ = ask(page, f"GET {path} HTTP/1.1\r\nHost: {name}")
    assert code in (200, 503)


@pytest.mark.parametrize("path", ["/healthz", "/", "/api/status", "/static/page.js", "/events", "/nothing"])
def test_another_name_gets_a_sentence_that_names_the_option(page: PageServer, path: str) -> None:
    code, body = ask(page, f"GET {path} HTTP/1.1\r\nHost: evil.com:8080")
    assert code == 421
    assert body == (
        "The status page does not answer to the name evil.com. "
        "Use the machine's IP address, or start the page with --allow-host evil.com.\n"
    )


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.0",
        "GET / HTTP/1.1",
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
        "GET / HTTP/1.0\r\nHost: localhost\r\nHost: evil.com",
        "GET / HTTP/1.1\r\nHost:",
        "GET / HTTP/1.1\r\nHost: <b>",
    ],
)
def test_no_valid_host_or_several_are_refused(page: PageServer, head: str) -> None:
    code, body = ask(page, head)
    assert code == 400
    assert "<b>" not in body


def coordinator_options(*words: str) -> dict[str, Any]:
    command = typer.main.get_group(server_app).commands["coordinator"]
    return command.make_context("coordinator", ["e.yaml", "--broker", "mqtt://b", *words]).params


def test_the_option_takes_several_names() -> None:
    assert coordinator_options()["allow_host"] is None
    assert coordinator_options("--allow-host", "a.de", "--allow-host", "B.de")["allow_host"] == ["a.de", "B.de"]


@pytest.mark.parametrize("name", ["http://a.de", "a.de:8080", "a.de/", "", "*"])
def test_what_is_no_name_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a host name: give a name such as"):
        coordinator_options("--allow-host", name)
