"""Who may read and control: the token, the cookie, and requests from other sites."""

from __future__ import annotations

import hashlib
import queue
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from fedquilt_server.runs.page_address import TOKEN_VARIABLE
from fedquilt_server.status.control import ControlRequest
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web.access import SHORTEST_TOKEN, Access, PageTokenError, choose_access
from fedquilt_server.web.server import PageServer

TOKEN = "a-token-of-some-length"  # noqa: S105
OTHER_TOKEN = "another-token-of-some-length"  # noqa: S105
BEARER = {"Authorization": f"Bearer {TOKEN}"}
Requests = queue.SimpleQueue[ControlRequest]


MakePage = Callable[..., tuple[httpx.Client, Requests]]


@pytest.fixture
def page() -> Iterator[MakePage]:
    """Make a page, and a visitor who keeps cookies."""
    with ExitStack() as opened:

        def make(
            *, reads_need_token: bool = False, token: str = TOKEN, **snapshot: object
        ) -> tuple[httpx.Client, Requests]:
            store = StatusStore(Snapshot.model_validate({"boards": [BoardStatus(agent="pi")], **snapshot}))
            requests: Requests = queue.SimpleQueue()
            access = Access(token, reads_need_token)
            server = opened.enter_context(PageServer(store, access=access, request_control=requests.put))
            return opened.enter_context(httpx.Client(base_url=server.url, timeout=60)), requests

        yield make


def test_control_needs_the_token_and_reading_on_this_machine_does_not(page: MakePage) -> None:
    client, requests = page()
    assert client.get("/").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        assert client.post("/api/v1/control", json={"action": "pause"}, headers=headers).status_code == 401
    assert client.post("/api/v1/control", json={"action": "pause"}, headers=BEARER).status_code == 202
    assert requests.get_nowait() == ControlRequest("pause")
    assert requests.empty()


def test_beyond_this_machine_reading_needs_it_too_but_for_the_health_check(page: MakePage) -> None:
    client, _ = page(reads_need_token=True)
    for path in ("/", "/api/status", "/metrics", "/events", "/openapi.json"):
        assert client.get(path).status_code == 401, path
    assert client.get("/healthz").status_code == 503  # no broker in this snapshot
    assert client.get("/static/page.css").status_code == 200
    assert client.get("/api/status", headers=BEARER).status_code == 200
    assert client.get("/?token=wrong").status_code == 401
    welcome = client.get(f"/?token={TOKEN}")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
    assert "HttpOnly" in welcome.headers["set-cookie"]
    assert "SameSite=strict" in welcome.headers["set-cookie"]
    assert client.get("/api/status").status_code == 200  # with the cookie


def test_a_second_page_on_the_same_machine_does_not_log_the_first_one_out(page: MakePage) -> None:
    first, _ = page(reads_need_token=True)
    second, _ = page(reads_need_token=True, token=OTHER_TOKEN)
    browser = httpx.Cookies()  # cookies know hosts, not ports
    for client, token in ((first, TOKEN), (second, OTHER_TOKEN)):
        client.cookies = browser
        assert client.get(f"/?token={token}").status_code == 303
        browser = client.cookies
    for client in (first, second):
        client.cookies = browser
        assert client.get("/api/v1/snapshot").status_code == 200


def test_the_name_of_the_cookie_depends_on_the_token_and_no_other_name_is_accepted(page: MakePage) -> None:
    client, _ = page(reads_need_token=True)
    digest = hashlib.sha256(b"fedquilt page " + TOKEN.encode()).hexdigest()[:16]
    for name, code in (("fedquilt-token", 401), (f"fedquilt-token-{digest}", 200)):
        client.cookies = httpx.Cookies({name: TOKEN})
        assert client.get("/api/v1/snapshot").status_code == code, name


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Origin": "the page"}, 303),
    ],
)
def test_a_form_on_another_site_cannot_use_the_cookie(headers: dict[str, str], code: int, page: MakePage) -> None:
    client, requests = page()
    client.get(f"/?token={TOKEN}")
    if headers.get("Origin") == "the page":
        headers = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/control", data={"action": "drop", "board": "pi"}, headers=headers).status_code == code
    assert requests.empty() == (code == 403)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"action": "drop", "board": "nobody"}, 404),
        ({"action": "drop"}, 404),
        ({"action": "explode"}, 422),
        ({"action": "pause", "more": 1}, 422),
        ({"action": "drop", "board": "x" * 201}, 422),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused(body: dict[str, object], code: int, page: MakePage) -> None:
    client, requests = page()
    assert client.post("/api/v1/control", json=body, headers=BEARER).status_code == code
    assert client.post("/control", data=body, headers=BEARER).status_code == code
    assert requests.empty()


def test_a_run_that_has_ended_takes_no_requests(page: MakePage) -> None:
    client, _ = page(phase="stopped")
    answer = client.post("/api/v1/control", json={"action": "pause"}, headers=BEARER)
    assert (answer.status_code, answer.json()) == (409, {"detail": "the run is stopped: it takes no requests"})


def test_a_long_form_is_not_read(page: MakePage) -> None:
    client, _ = page()
    assert client.post("/control", content=b"action=" + b"x" * 2000, headers=BEARER).status_code == 413


def test_the_token_of_a_local_page_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    first = choose_access("127.0.0.1", tmp_path / "run", public=False)
    assert choose_access("localhost", tmp_path / "run", public=False) == first
    assert not first.reads_need_token
    assert stat.S_IMODE((tmp_path / "run" / "page-token").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damaged", [b"x\n", b"0123456789abcd\xad0123456789\n", "0123456789abcd\xe9f".encode(), b"\x00" * 24]
)
def test_a_damaged_token_file_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    choose_access("127.0.0.1", tmp_path, public=False)
    (tmp_path / "page-token").write_bytes(damaged)
    token = choose_access("127.0.0.1", tmp_path, public=False).token
    assert len(token) >= SHORTEST_TOKEN
    assert (tmp_path / "page-token").read_text() == token + "\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "lab", ""])  # noqa: S104
def test_a_page_for_other_machines_needs_a_token_of_its_user(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(PageTokenError, match="set FEDQUILT_PAGE_TOKEN"):
        choose_access(host, tmp_path, public=False)
    assert not choose_access(host, tmp_path, public=True).reads_need_token
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(PageTokenError, match="5 characters"):
        choose_access(host, tmp_path, public=True)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert choose_access(host, tmp_path, public=False) == Access(TOKEN, reads_need_token=True)
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * SHORTEST_TOKEN)
    assert choose_access(host, tmp_path, public=False).token == "x" * SHORTEST_TOKEN
