"""The page over a folder of runs, over real HTTP: list, runs, comparisons, who may read, and bounds."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from tests.support.example_runs import running
from tests.support.recorded_runs import near, write_boards, write_run

from fedquilt_common.files.locking import lock_folder
from fedquilt_server.library.recorded_run import read_run
from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.library.run_list import run_json
from fedquilt_server.runs.page_address import TOKEN_VARIABLE, PageAddress, note_page
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.access import Access, PageTokenError, choose_reader_access
from fedquilt_server.web.library_app import create_library_app
from fedquilt_server.web.open_runs import OpenRuns
from fedquilt_server.web.run_comparison import MOST_COMPARED
from fedquilt_server.web.server import PageServer, WebServer

HOSTILE = "<script>window.hacked = 1<|script>"
HTML = {"accept": "text/html"}


def serve(folder: Path, access: Access | None = None) -> WebServer:
    return WebServer(lambda names: create_library_app(RunLibrary(folder), names, access=access))


def write_runs(folder: Path) -> Path:
    for seed in (1, 2):
        write_boards(write_run(folder / "sweep" / f"seed={seed}", seed=seed), {"weak-1": [0], "weak-2": [1]}, 3)
    write_run(folder / "lr", status="failed", reason="the loss is nan", exit_code=7, settings={"training": {"lr": 9}})
    write_run(folder / HOSTILE, name=HOSTILE, algorithm=HOSTILE, status="failed", reason=HOSTILE)
    (write_run(folder / "damaged") / "result.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[httpx.Client]:
    with serve(folder) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def test_the_api_lists_runs_as_the_command_does(folder: Path, web: httpx.Client) -> None:
    listed = web.get("/api/v1/runs").json()
    assert len(listed) == 5
    one = next(run for run in listed if run["id"] == "sweep~seed=2")
    assert one.pop("id") == "sweep~seed=2"
    assert web.get("/" + one.pop("address")).status_code == 200
    assert one == run_json(read_run(folder / "sweep" / "seed=2"))


def test_the_list_escapes_every_text(web: httpx.Client) -> None:
    text = web.get("/").text
    assert "<script>window" not in text
    assert "&lt;script&gt;window" in text
    assert 'data-status="damaged"' in text


def test_the_list_names_runs_of_two_sweeps_by_their_folders(tmp_path: Path) -> None:
    deep = "x" * 130
    for place in ("a", "b/c", deep):
        write_run(tmp_path / place / "seed=1")
    write_run(tmp_path / "alone")
    with serve(tmp_path) as server:
        text = httpx.get(server.url + "?sort=name").text
    links = re.findall(r'<a href="runs/[^"]+" title="[^"]+">(.+?)</a>', text)
    names = [re.sub("<[^>]*>", "", link) for link in links]
    assert names == ["a/seed=1", "alone", "b/c/seed=1", f"…{deep[-119:]}/seed=1"]


def test_the_list_is_searched_and_sorted_without_scripts(web: httpx.Client) -> None:
    found = web.get("/", params={"q": "nan", "status": "failed", "sort": "name"}).text
    assert found.count('data-status="failed"') == 1
    assert 'aria-sort="ascending"' in found
    assert "No run matches" in web.get("/", params={"q": HOSTILE + "?"}).text


def test_each_run_has_its_page_and_its_api(web: httpx.Client) -> None:
    page = web.get("/runs/sweep~seed=1/")
    assert 'data-testid="phase" data-phase="finished"' in page.text
    assert 'data-testid="control"' not in page.text
    assert web.get("/runs/sweep~seed=1/api/v1/snapshot").json()["history"][2]["accuracy"] == near(0.9)
    assert [one["agent"] for one in web.get("/runs/sweep~seed=1/api/v1/boards").json()] == ["weak-1", "weak-2"]
    assert len(web.get("/runs/sweep~seed=1/api/v1/replies").json()) == 6
    assert web.get("/runs/sweep~seed=1/api/v1/files/replies.csv").text.startswith("round,")
    failed = web.get("/runs/lr/").text
    assert "The run failed: " in failed
    assert "the loss is nan (exit code 7)" in failed


@pytest.mark.parametrize("path", ["runs/nothing/", "runs/%2e%2e/", "runs/..%2flr/", "runs/lr%00/",
                                  "runs/sweep/", "runs/" + 300 * "x" + "/"])  # fmt: skip
@pytest.mark.parametrize("part", ["", "api/v1/snapshot", "events"])
def test_what_is_not_in_the_list_is_not_there(path: str, part: str, web: httpx.Client) -> None:
    request = httpx.Request("GET", str(web.base_url) + path + part)
    assert web.send(request).status_code in (404, 422)


def test_a_wrong_address_is_explained_to_people_and_programs(web: httpx.Client) -> None:
    people = web.get("/runs/nothing/", headers=HTML)
    assert "there is no such run" in people.text
    assert 'href="../../"' in people.text
    assert web.get("/runs/nothing/api/v1/rounds", headers=HTML).json()["detail"].startswith("there is no such run")
    assert "choose 2 to" in web.get("/compare", headers=HTML).text


def test_nothing_can_be_changed(web: httpx.Client) -> None:
    for path in ("/", "/api/v1/runs", "/runs/lr/api/v1/control", "/runs/lr/control", "/control"):
        assert web.post(path, json={"action": "stop"}).status_code in (404, 405)


def test_runs_side_by_side(web: httpx.Client) -> None:
    ids = {"run": ["sweep~seed=1", "lr"]}
    found = web.get("/api/v1/comparison", params=ids).json()
    assert [(one["label"], one["status"]) for one in found["curves"]] == [("seed=1", "finished"), ("lr", "failed")]
    assert found["curves"][0]["value"] == [0.5, 0.8, 0.9]
    assert found["curves"][0]["seconds"] == [2.0, 4.0, 6.0]
    assert found["results"]["final_accuracy"] == [0.9, 0.9]
    assert found["differences"]["training.lr"] == ["0.05", "9"]
    page = web.get("/compare", params=ids).text
    assert "training.lr" in page
    assert "total bytes" in page


@pytest.mark.parametrize(
    ("ids", "code"),
    [(["lr"], 404), ([], 404), (["lr", "lr"], 404), (["lr", "nothing"], 404), (["lr", "../lr"], 404),
     ([f"r{number}" for number in range(MOST_COMPARED + 1)], 404)],
)  # fmt: skip
def test_what_cannot_be_compared(ids: list[str], code: int, web: httpx.Client) -> None:
    for path in ("/compare", "/api/v1/comparison"):
        assert web.get(path, params={"run": ids}).status_code == code


def test_a_folder_without_runs_and_one_that_is_gone(tmp_path: Path) -> None:
    with serve(tmp_path / "runs") as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/", headers=HTML).status_code == 503
        assert "there is no such folder" in client.get("/api/v1/runs").json()["detail"]
        (tmp_path / "runs").mkdir()
        assert "There is no run in this folder yet" in client.get("/").text
        assert client.get("/healthz").status_code == 200


def test_names_that_no_encoding_has(tmp_path: Path) -> None:
    run = write_run(tmp_path / os.fsdecode(b"digits-\xff"), run="x")
    (run / "boards.csv").write_text("?")
    with serve(tmp_path) as server, httpx.Client(base_url=server.url) as client:
        (one,) = client.get("/api/v1/runs").json()
        assert client.get("/").status_code == 200
        assert client.get("/" + one["address"]).status_code == 200
        assert client.get("/" + one["address"] + "api/v1/snapshot").json()["notes"]


# --- who may read --------------------------------------------------------------------------------------------


def test_beyond_this_machine_reading_needs_the_token(folder: Path) -> None:
    token = "a-token-of-some-length"  # noqa: S105
    with serve(folder, Access(token, reads_need_token=True)) as server, httpx.Client(base_url=server.url) as client:
        for path in ("/", "/compare", "/api/v1/runs", "/runs/lr/", "/runs/lr/api/v1/snapshot", "/openapi.json"):
            assert client.get(path).status_code == 401, path
        assert client.get(f"/?token={token}").headers["location"] == "/"
        assert client.get("/runs/lr/").status_code == 200


def test_other_names_are_refused_and_answers_have_the_safe_headers(web: httpx.Client) -> None:
    assert web.get("/", headers={"Host": "evil.example"}).status_code == 421
    for path in ("/", "/runs/lr/", "/compare", "/api/v1/runs"):
        assert "default-src 'none'" in web.get(path).headers["content-security-policy"]


def test_who_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert choose_reader_access("127.0.0.1", public=False) is None
    assert choose_reader_access("0.0.0.0", public=True) is None  # noqa: S104
    with pytest.raises(PageTokenError, match="needs a token"):
        choose_reader_access("0.0.0.0", public=False)  # noqa: S104
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * 16)
    assert choose_reader_access("0.0.0.0", public=False) == Access("x" * 16, reads_need_token=True)  # noqa: S104


# --- runs that go on, and bounds -----------------------------------------------------------------------------


def test_the_stream_of_a_run_follows_its_page(tmp_path: Path) -> None:
    store = StatusStore(running())
    folder = write_run(tmp_path / "digits", status="running", exit_code=None)
    with lock_folder(folder), PageServer(store) as page, serve(tmp_path) as server:
        note_page(folder, PageAddress(url=page.url, run=store.current.run))
        with httpx.stream("GET", f"{server.url}runs/digits/api/v1/stream", timeout=60) as answer:
            lines = answer.iter_lines()
            assert any('"round":21' in line for line in lines)
            store.update(round=22)
            assert any('"round":22' in line for line in lines)


def test_only_so_many_runs_are_open(folder: Path) -> None:
    closing = threading.Event()
    opened = OpenRuns(RunLibrary(folder), closing, most=2)
    first = opened.find("lr")
    assert first is not None
    assert opened.find("lr") is first
    assert first.store.current.phase == "failed"
    others = [opened.find(id) for id in ("sweep~seed=1", "sweep~seed=2")]
    assert [run.closing.is_set() for run in (first, *others) if run] == [True, False, False]
    closing.set()
    for run in others:
        assert run is not None
        assert run.closing.wait(60), "all streams end with the server"


# --- the schema ----------------------------------------------------------------------------------------------


def test_answers_keep_to_the_schema(folder: Path) -> None:
    import schemathesis  # here, because it takes a second

    app = create_library_app(RunLibrary(folder))
    streams = ["/runs/{run_id}/events", "/runs/{run_id}/api/v1/stream"]
    schema = schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path=streams)
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) == 17
    for operation in operations:

        @given(operation.as_strategy())
        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: schemathesis.Case[Any]) -> None:
            if "run_id" in case.path_parameters and len(str(case.query)) % 2:
                case.path_parameters["run_id"] = "sweep~seed=1"
            case.call_and_validate()

        check()
    app.state.closing.set()
