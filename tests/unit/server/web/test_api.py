"""The API of a run over real HTTP: what ``since`` leaves out, tables as CSV, and coverage."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

import httpx
import pytest

from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import CentralSpent, RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.server import PageServer


@pytest.fixture
def store() -> StatusStore:
    return StatusStore()


@pytest.fixture
def web(store: StatusStore) -> Iterator[httpx.Client]:
    with PageServer(store) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def row(number: int, loss: float = 0.5) -> RoundResult:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    return RoundResult.model_validate({**zeros, "round": number, "loss": loss})


def reply(round: int, agent: str = "pi") -> ReplyRow:
    return ReplyRow(round=round, client=1, agent=agent, outcome="accepted")


def test_since_leaves_out_the_rounds_and_replies_that_a_reader_has(store: StatusStore, web: httpx.Client) -> None:
    store.update(history=[row(1), row(2)], reply_rows=[reply(1), reply(2)], coverage=Coverage(rounds=1, layers=[]))
    for path in ("/api/status", "/api/v1/snapshot"):
        shown = web.get(f"{path}?since=1").json()
        assert [one["round"] for one in shown["history"]] == [2]
        assert [one["round"] for one in shown["reply_rows"]] == [2]
        assert "coverage" not in shown
    assert [one["round"] for one in web.get("/api/v1/replies?since=1").json()] == [2]
    assert [one["round"] for one in web.get("/api/v1/rounds?since=1").json()] == [2]


def test_events_since_a_time(store: StatusStore, web: httpx.Client) -> None:
    store.update(events=[RunEvent(at=float(at), kind="late", text="x") for at in (9, 5, 1)])
    assert [one["at"] for one in web.get("/api/v1/events?since=4.5").json()] == [9, 5]
    assert web.get("/api/v1/events?since=nan").status_code == 422


def test_tables_can_be_downloaded(store: StatusStore, web: httpx.Client) -> None:
    spent = CentralSpent(epsilon=1.5, epsilon_known=2.0, budget=8.0, delta=0.001, noise=0.5, clip=1.0)
    measured = row(1).model_copy(update={"scores": {"macro_f1": 0.25}, "central_privacy": spent})
    store.update(history=[measured, row(2, math.nan)], reply_rows=[reply(1, '=cmd|"calc"'), reply(2, "a,\nb")])
    answer = web.get("/api/v1/rounds?format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="rounds.csv"'
    rounds = list(csv.DictReader(io.StringIO(answer.text)))
    assert [one["round"] for one in rounds] == ["1", "2"]
    assert "trained" not in rounds[0]
    assert [(one["macro_f1"], one["privacy_epsilon"]) for one in rounds] == [("0.25", "1.5"), ("", "")]
    replies = list(csv.DictReader(io.StringIO(web.get("/api/v1/replies?format=csv").text)))
    assert [one["agent"] for one in replies] == ['\'=cmd|"calc"', "a,\nb"]
    assert replies[0]["loss"] == ""


def test_coverage_is_thinned_on_request(store: StatusStore, web: httpx.Client) -> None:
    assert web.get("/api/v1/coverage").json() is None
    layer = LayerCoverage(name="fc", counts=[4, 2, 0, 0], latest=[1, 0, 0, 0], boards={"a": 0.5})
    store.update(coverage=Coverage(rounds=2, layers=[layer]))
    assert web.get("/api/v1/coverage").json()["layers"][0]["counts"] == [4, 2, 0, 0]
    assert web.get("/api/v1/coverage?channels=2").json()["layers"][0]["counts"] == [3, 0]
    assert web.get("/api/v1/coverage?channels=0").status_code == 422
