"""The list of runs: search, status, order and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_server.library.run_library import LibraryRun
from fedquilt_server.library.run_list import RunRow
from fedquilt_server.web.run_table import SHOWN, RunQuery, select_runs

EMPTY = dict.fromkeys(RunRow.model_fields) | {"reason": "", "rounds": 0, "notes": [], "status": "finished"}


def run(path: str, **changes: object) -> LibraryRun:
    row = RunRow.model_validate({**EMPTY, "folder": f"runs/{path}", "name": path, **changes})
    return LibraryRun(path.replace("/", "~"), Path(path), path, row, ())


RUNS = [
    run("a-10", algorithm="fedavg", final=0.9, score="accuracy", started=3.0, seed=1),
    run("a-2", algorithm="FedProx", final=0.8, score="accuracy", started=5.0),
    run("b", algorithm=None, status="failed", reason="the loss is nan", started=None, seed=2),
    run("c", algorithm="fedavg", status="running", final=0.95, score="accuracy", started=1.0),
]


def names(**query: object) -> list[str]:
    return [one.path for one in select_runs(RUNS, RunQuery(**query)).rows]  # type: ignore[arg-type]


def test_the_newest_runs_come_first_and_unknown_values_last() -> None:
    assert names() == ["a-2", "a-10", "c", "b"]
    assert names(sort="started") == ["c", "a-10", "a-2", "b"]
    assert names(sort="-final") == ["c", "a-10", "a-2", "b"]
    assert names(sort="name") == ["a-2", "a-10", "b", "c"]
    assert names(sort="algorithm") == ["a-10", "c", "a-2", "b"]
    assert names(sort="status") == ["c", "b", "a-10", "a-2"]
    assert names(sort="folder; drop") == names(), "a column that there is not"


def test_every_word_must_occur() -> None:
    assert names(text="FEDAVG a-") == ["a-10"]
    assert names(text="nan") == ["b"]
    assert names(text="fedavg nan") == []
    assert names(text="<b>") == []


def test_a_status() -> None:
    assert names(status="failed") == ["b"]
    assert names(status="nothing") == []
    page = select_runs(RUNS, RunQuery(status="failed"))
    assert (page.matching, page.total) == (1, 4)
    assert list(page.counts.items()) == [("running", 1), ("failed", 1), ("finished", 2)]


@pytest.mark.parametrize(("asked", "shown"), [(1, 1), (2, 2), (3, 3), (99, 3)])
def test_long_lists_have_pages(asked: int, shown: int) -> None:
    many = [run(f"run-{number}", started=float(number)) for number in range(2 * SHOWN + 5)]
    page = select_runs(many, RunQuery(sort="started", page=asked))
    assert (page.pages, page.query.page, page.first) == (3, shown, (shown - 1) * SHOWN + 1)
    assert page.rows[0].path == f"run-{(shown - 1) * SHOWN}"
    assert len(page.rows) == (5 if shown == 3 else SHOWN)


def test_links_keep_the_other_choices() -> None:
    query = RunQuery("a & b", "failed", "-final", 3)
    assert query.link(page=4) == "?q=a+%26+b&status=failed&sort=-final&page=4"
    assert query.sort_link("final") == "?q=a+%26+b&status=failed&sort=final"
    assert query.sort_link("name") == "?q=a+%26+b&status=failed&sort=name"
    assert RunQuery().sort_link("seconds") == "?sort=-seconds"
    assert RunQuery(status="failed").link(status="", page=1) == "?"
