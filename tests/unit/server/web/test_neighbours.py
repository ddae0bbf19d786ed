"""The runs beside a run over real HTTP: which can be compared with it, and the points of their curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.recorded_runs import make_rounds, write_run

from fedquilt_common.learning_tasks.metrics import ACCURACY, Metric
from fedquilt_server.library import run_library
from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web import neighbours as neighbours_module
from fedquilt_server.web.curves import COLUMNS, Curves, make_curves
from fedquilt_server.web.neighbours import list_neighbours
from fedquilt_server.web.server import PageServer

OpenPage = Callable[[Path], httpx.Client]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPage]:
    monkeypatch.setattr(run_library, "LEAST_SECONDS", 0.0)  # each request looks at the folder again
    monkeypatch.setattr(run_library, "SHARE", 1e9)
    with ExitStack() as opened:

        def start(folder: Path) -> httpx.Client:
            server = opened.enter_context(PageServer(StatusStore(), folder=folder))
            return opened.enter_context(httpx.Client(base_url=server.url, timeout=60))

        yield start


def listed(web: httpx.Client) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in web.get("/api/v1/runs").json()}


def test_the_runs_beside_a_run_are_listed_with_the_run_marked(open_page: OpenPage, tmp_path: Path) -> None:
    own = write_run(tmp_path / "now", (0.2, 0.4), settings={"rounds": 9}, status="running")
    write_run(tmp_path / "before", (0.5, 0.8, 0.7), algorithm="fedprox", seed=3)
    found = listed(open_page(own))
    assert list(found) == ["before", "now"]
    assert {name for name, one in found.items() if one["own"]} == {"now"}
    before = found["before"]
    assert (before["algorithm"], before["seed"], before["best"], before["final"]) == ("fedprox", 3, 0.8, 0.7)
    assert found["now"]["planned_rounds"] == 9


def test_a_run_is_compared_with_runs_of_its_data_set_and_score(open_page: OpenPage, tmp_path: Path) -> None:
    own = write_run(tmp_path / "now")
    write_run(tmp_path / "alike")
    write_run(tmp_path / "other-data", dataset="fashion")
    write_run(tmp_path / "other-score", rounds=[row.model_copy(update={"r2": 0.5}) for row in make_rounds([None])])
    write_run(tmp_path / "no-round", ())
    found = listed(open_page(own))
    assert {name for name, one in found.items() if one["comparable"]} == {"alike"}


def test_a_run_without_a_round_is_compared_by_its_data_set(open_page: OpenPage, tmp_path: Path) -> None:
    own = write_run(tmp_path / "now", ())
    write_run(tmp_path / "alike")
    write_run(tmp_path / "other-data", dataset="fashion")
    found = listed(open_page(own))
    assert {name for name, one in found.items() if one["comparable"]} == {"alike"}


def test_a_run_that_does_not_exist_yet_has_no_neighbours_to_compare(open_page: OpenPage, tmp_path: Path) -> None:
    write_run(tmp_path / "alike")
    web = open_page(tmp_path / "now")
    assert {name: one["comparable"] for name, one in listed(web).items()} == {"alike": False}
    write_run(tmp_path / "now", ())
    assert listed(web)["alike"]["comparable"]


def test_each_run_has_a_label_for_people(open_page: OpenPage, tmp_path: Path) -> None:
    own, name = write_run(tmp_path / "now"), "priv'\"; DROP &amp;"
    write_run(tmp_path / name)
    assert [one["label"] for one in open_page(own).get("/api/v1/runs").json()] == ["now", name]
    write_run(tmp_path / "g" / "avg-3")
    nested = list_neighbours(RunLibrary(tmp_path).list(), own)
    assert {one.id: one.label for one in nested}["g~avg-3"] == "g/avg-3"


def test_only_the_folder_of_the_run_is_searched(open_page: OpenPage, tmp_path: Path) -> None:
    own = write_run(tmp_path / "now")
    write_run(tmp_path / "sweep" / "case")
    assert list(listed(open_page(own))) == ["now"]


def test_a_folder_that_is_gone_is_named(open_page: OpenPage, tmp_path: Path) -> None:
    web = open_page(tmp_path / "gone" / "now")
    for path in ("/api/v1/runs", "/api/v1/runs/now/curves"):
        refused = web.get(path)
        assert (refused.status_code, "there is no such folder" in refused.json()["detail"]) == (503, True)


def test_the_curves_of_another_run_are_thinned(open_page: OpenPage, tmp_path: Path) -> None:
    rounds = make_rounds([number / 5000 for number in range(1500)])
    write_run(tmp_path / "long", rounds=rounds)
    found = open_page(write_run(tmp_path / "now")).get("/api/v1/runs/long/curves").json()
    assert found == make_curves(rounds, ACCURACY).since(None)
    assert set(found) == {"start", "measure", "title", "share", *COLUMNS}
    assert len(found["round"]) < 750


def test_curves_are_drawn_again_only_if_the_run_has_changed(
    open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def draw(rounds: Sequence[RoundResult], measure: Metric) -> Curves:
        drawn.append(len(rounds))
        return make_curves(rounds, measure)

    monkeypatch.setattr(neighbours_module, "make_curves", draw)
    web = open_page(write_run(tmp_path / "now"))
    write_run(tmp_path / "other", (0.1, 0.2))
    for _ in range(3):
        assert web.get("/api/v1/runs/other/curves").json()["value"] == [0.1, 0.2]
    write_run(tmp_path / "other", (0.1, 0.2, 0.3))
    assert web.get("/api/v1/runs/other/curves").json()["value"] == [0.1, 0.2, 0.3]
    assert drawn == [2, 3]


def test_an_unknown_run_has_no_curves(open_page: OpenPage, tmp_path: Path) -> None:
    web = open_page(write_run(tmp_path / "now"))
    for name in ("other", "..", "%2E%2E%2Fnow"):
        assert web.get(f"/api/v1/runs/{name}/curves").status_code == 404
