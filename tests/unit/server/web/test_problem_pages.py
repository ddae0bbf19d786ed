"""What is wrong with a request: a page for people, short JSON for programs, and never the values that came with it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.recorded_runs import write_run

from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web.access import Access
from fedquilt_server.web.library_app import create_library_app
from fedquilt_server.web.server import PageServer, WebServer

TOKEN = "a-token-of-some-length"  # noqa: S105
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
LONG = "needle" * 1500


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs / "digits")
    server = WebServer(lambda names: create_library_app(RunLibrary(runs), names))
    with server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def coordinator() -> Iterator[httpx.Client]:
    store = StatusStore(Snapshot(boards=[BoardStatus(agent="pi")]))
    server = PageServer(store, access=Access(TOKEN), request_control=lambda _: None)
    with server, httpx.Client(base_url=server.url, timeout=60, headers=BEARER) as client:
        yield client


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("/?page=0", "page: input should be greater than or equal to 1"),
        ("/?page=1000001", "page: input should be less than or equal to 1000000"),
        (f"/?page={LONG}", "page: input should be a valid integer"),
        (f"/?q={LONG}", "q: string should have at most 200 characters"),
    ],
)
def test_a_wrong_address_is_explained_without_its_values(address: str, reason: str, library: httpx.Client) -> None:
    page = library.get(address, headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert "This address is not valid" in page.text
    assert reason in page.text
    assert '<a href="./">All runs</a>' in page.text
    data = library.get(address)
    assert data.status_code == 422
    assert data.headers["content-type"] == "application/json"
    (mistake,) = data.json()["detail"]
    assert set(mistake) == {"type", "loc", "msg"}
    assert "needle" not in page.text + data.text


def test_programs_get_json_from_the_api_whatever_they_accept(library: httpx.Client) -> None:
    answer = library.get(f"/runs/digits/api/v1/rounds?since={LONG}", headers=HTML)
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["query", "since"])
    assert "needle" not in answer.text


def test_the_link_of_a_page_leads_to_the_list(library: httpx.Client) -> None:
    assert '<a href="./">All runs</a>' in library.get("/compare", headers=HTML).text
    assert '<a href="../../">All runs</a>' in library.get("/runs/nothing/", headers=HTML).text


@pytest.mark.parametrize(
    ("form", "code", "reason"),
    [
        ({"action": "drop", "board": "nobody"}, 404, "there is no board &#39;nobody&#39;"),
        ({"action": "explode"}, 422, "action: input should be"),
        ({"action": "drop", "board": "needle" * 40}, 422, "board: string should have at most 200 characters"),
        ({"action": LONG}, 413, "the form is too long"),
    ],
)
def test_a_form_that_is_refused_without_scripts_has_a_page_with_a_link_back(
    form: dict[str, str], code: int, reason: str, coordinator: httpx.Client
) -> None:
    page = coordinator.post("/control", data=form, headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (code, "text/html; charset=utf-8")
    assert "The request was not carried out" in page.text
    assert reason in page.text
    assert '<a href="./">Back to the run</a>' in page.text
    data = coordinator.post("/control", data=form)
    assert data.status_code == code
    assert data.json()["detail"]
    assert "needle" not in page.text + data.text


def test_names_of_unknown_fields_are_cut_and_counted(coordinator: httpx.Client) -> None:
    body = {"action": "pause", **{f"{LONG}{number}": 1 for number in range(100)}}
    answer = coordinator.post("/api/v1/control", json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 1500


def test_an_address_that_no_run_has_is_a_page_for_people(coordinator: httpx.Client) -> None:
    page = coordinator.get("/nothing", headers=HTML)
    assert (page.status_code, "There is nothing here" in page.text) == (404, True)
    assert coordinator.get("/nothing").json() == {"detail": "Not Found"}
    assert coordinator.put("/control", headers=HTML).headers["allow"] == "POST"
