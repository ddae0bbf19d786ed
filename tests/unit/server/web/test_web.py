"""The status page's server over real HTTP: page, API, events, health check, and texts from a hostile agent."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from tests.support.page_snapshots import row, snapshot, status
from tests.support.recorded_runs import write_run
from tests.support.visitors import stops_at_once

import fedquilt_server.web
from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import RejectedReply, Snapshot, StatusStore
from fedquilt_server.web.app import create_app
from fedquilt_server.web.frames import FRAME_SECONDS
from fedquilt_server.web.server import PageServer

WEB = Path(fedquilt_server.web.__file__).parent
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\r\nevent: status\r\ndata: x"


# --- page and API ----------------------------------------------------------------------------------------


def test_page_shows_the_run(web: httpx.Client) -> None:
    page = web.get("/")
    assert page.status_code == 200
    assert '<strong data-testid="round">2</strong> of <strong>9</strong>' in page.text
    assert re.search(r'data-testid="accuracy">10\.0 %<', page.text)
    assert page.text.count("static/") >= 20  # style sheets and modules


def test_what_is_not_known_is_a_dash(store: StatusStore, web: httpx.Client) -> None:
    store.update(round=0, rounds=0, history=[], boards=[status("a")])
    page = web.get("/").text
    assert '<strong data-testid="round">–</strong> of <strong>–</strong>' in page  # noqa: RUF001
    assert not re.search(r"nan|None|>0\.0", page, re.IGNORECASE)


def test_the_time_that_is_left_has_no_fractions(store: StatusStore, web: httpx.Client) -> None:
    store.update(history=[row(1).model_copy(update={"seconds": 0.34})])
    assert "about 3 s left" in web.get("/").text  # of 2.72 s


@pytest.mark.parametrize(
    ("phase", "awaited", "words"),
    [
        ("waiting", [4, 5, 7], "Waiting for clients 4–5, 7 to connect"),  # noqa: RUF001
        ("training", [4], "Waiting for client 4 to reply"),
        ("training", [], ""),
        ("finished", [4], ""),
    ],
)
def test_it_says_for_whom_the_run_waits(
    phase: str, awaited: list[int], words: str, store: StatusStore, web: httpx.Client
) -> None:
    store.update(phase=phase, awaited=awaited)
    assert f'data-testid="awaited">{words}</p>' in web.get("/").text


def test_status_is_the_snapshot(store: StatusStore, web: httpx.Client) -> None:
    assert Snapshot.model_validate_json(web.get("/api/status").text) == store.current
    store.update(history=[row(number) for number in (1, 2, 3)])
    assert [r["round"] for r in web.get("/api/status?since=2").json()["history"]] == [3]


def test_a_loss_that_diverged_is_null(store: StatusStore, web: httpx.Client) -> None:
    store.update(history=[row(1, math.nan), row(2, math.inf)])
    assert [r["loss"] for r in web.get("/api/status").json()["history"]] == [None, None]
    assert [r["loss"] for r in web.get("/api/rounds").json()] == [None, None]
    assert web.get("/").status_code == 200


def test_rounds_since(store: StatusStore, web: httpx.Client) -> None:
    store.update(history=[row(1), row(2), row(3)])
    assert [r["round"] for r in web.get("/api/rounds").json()] == [1, 2, 3]
    assert [r["round"] for r in web.get("/api/rounds?since=2").json()] == [3]
    assert web.get("/api/rounds?since=-1").status_code == 422


@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({}, 200, "ok"),
        ({"phase": "finished"}, 200, "ok"),
        ({"phase": "failed"}, 503, "failed"),
        ({"broker_connected": False}, 503, "broker-lost"),
        ({"broker_connected": False, "phase": "finished"}, 200, "ok"),
    ],
)
def test_health(store: StatusStore, web: httpx.Client, changes: dict[str, object], code: int, word: str) -> None:
    store.update(**changes)
    answer = web.get("/healthz")
    assert answer.status_code == code
    assert answer.json() == {"status": word, "broker": store.current.broker_connected}


# --- safety ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/status", "/static/page.js", "/metrics", "/nothing"])
def test_every_answer_has_the_safe_headers(web: httpx.Client, path: str) -> None:
    headers = web.get(path).headers
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"


def test_scripts_never_change_at_their_address(web: httpx.Client) -> None:
    address = re.search(r'src="(static/\w+/page\.js)"', web.get("/").text)
    assert address
    assert "immutable" in web.get(address[1]).headers["cache-control"]
    assert web.get("/static/page.js").headers["cache-control"] == "no-cache"


class Inspector(HTMLParser):
    """Collects inline code and links to other hosts, which the content security policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.tags.add(tag)
        if (tag == "script" and "src" not in names) or any(n == "style" or n[:2] == "on" for n in names):
            self.bad.append(self.get_starttag_text() or tag)
        self.bad += [f"{tag} {n}" for n in ("src", "href") if not re.match(r"(?!//|\w+:)", names.get(n) or "#")]


ALL_EVENTS = {
    "clock", "status", "waiting", "summary", "privacy", "board-list", "rounds", "event-list", "curves", "timeline",
    "quilt", "frame",
}  # fmt: skip


def hostile_snapshot() -> Snapshot:
    numbers = {"temperature": math.nan, "power": -1e300, "load": math.inf, "memory_used": -(2**70), "memory_total": 1}
    reported = {"training": {1: 1e300, 2: -1e9}, "last_seen": -1e300, "since": 1e300, "joules": -math.inf}
    states = {"health": "hot", "reason": HOSTILE, "clients": [1, -5, 2**70]}
    boards = [status(HOSTILE, kind=HOSTILE, **numbers, **reported, **states), status("", power=math.nan)]
    refused = [RejectedReply(at=1.0, agent=HOSTILE, client=1, round=1, reason=HOSTILE)]
    log = [RunEvent(at=1e300, kind="late", board=HOSTILE, client=-1, text=HOSTILE)]
    texts = dict.fromkeys(("name", "run", "algorithm", "dataset", "message", "warning"), HOSTILE)
    return snapshot(
        **texts, boards=boards, rejections=refused, events=log, version=7, started_at=-1e300, deadline=math.nan,
        reply_rows=[hostile_reply(at) for at in (0.0, -1e300, math.nan)], coverage=hostile_coverage(), opened_at=5.0,
        awaited=[1, 2**70], failing=1, failures={1: HOSTILE}, connect=HOSTILE,
        history=[row(1, math.nan).model_copy(update={"seconds": 1e300, "bytes_up": 2**70, "train_seconds": -1.0})],
    )  # fmt: skip


def hostile_reply(at: float) -> ReplyRow:
    times = {"opened_at": at, "began_at": math.inf, "arrived_at": -5.0, "closed_at": at, "train_seconds": math.nan}
    return ReplyRow.model_validate({"round": 1, "client": 1, "agent": HOSTILE, "outcome": "accepted", **times})


def hostile_coverage() -> Coverage:
    layer = LayerCoverage(name=HOSTILE, counts=[], latest=[1], boards={HOSTILE: -1.0})
    return Coverage(rounds=-1, layers=[layer, LayerCoverage(name="", counts=[-5, 2**70], latest=[], boards={})])


def test_hostile_text_stays_text(store: StatusStore, web: httpx.Client) -> None:
    store.update(**dict(hostile_snapshot()))
    inspector = Inspector()
    inspector.feed(web.get("/").text)
    assert inspector.bad == []
    assert {"script", "link", "progress"} <= inspector.tags
    assert "&lt;script&gt;alert(1)" in web.get("/").text


def test_hostile_text_cannot_forge_an_event(store: StatusStore, web: httpx.Client) -> None:
    store.update(**dict(hostile_snapshot()))
    with web.stream("GET", "/events") as stream:
        events = read_events(stream, until="frame")
    assert set(events) == ALL_EVENTS
    assert "<script" not in "".join(text for name, text in events.items() if name != "timeline")


# --- events ----------------------------------------------------------------------------------------------


def read_events(stream: httpx.Response, until: str) -> dict[str, str]:
    """Return the data of the events by name, up to and including the event ``until``."""
    seen: dict[str, str] = {}
    name = ""
    data: list[str] = []
    for line in stream.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name, data = value, []
        elif field == "data":
            data.append(value)
        elif not line and name:
            assert name not in seen, f"{name} was sent twice"
            seen[name] = "\n".join(data)
            if name == until:
                return seen
    raise AssertionError("the stream ended")


def test_events_carry_what_changed(store: StatusStore, web: httpx.Client) -> None:
    with web.stream("GET", "/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        first = take_until(lines, "event: frame")
        store.update(round=3)
        second = take_until(lines, "event: frame")
    assert names_in(first) == ALL_EVENTS
    assert names_in(second) == {"status", "frame"}


def test_a_page_that_was_just_loaded_receives_nothing_twice(web: httpx.Client) -> None:
    address = re.search(r'sse-connect="([^"]+)"', web.get("/").text)
    assert address
    with web.stream("GET", address[1]) as stream:
        assert names_in(take_until(stream.iter_lines(), "event: frame")) == {"clock", "frame"}


def test_a_page_that_is_back_receives_what_it_missed(store: StatusStore, web: httpx.Client) -> None:
    with web.stream("GET", "/events") as stream:
        last = read_events(stream, until="frame")["frame"]
    store.update(run="x-1", round=3)
    with web.stream("GET", "/events", headers={"last-event-id": last}) as stream:
        assert set(read_events(stream, until="frame")) == {"clock", "status", "frame"}
    with web.stream("GET", "/events", headers={"last-event-id": "of-another-coordinator.1"}) as stream:
        assert set(read_events(stream, until="frame")) == ALL_EVENTS


def names_in(lines: list[str]) -> set[str]:
    return {line.removeprefix("event: ") for line in lines if line.startswith("event: ")}


def take_until(lines: Iterator[str], last: str) -> list[str]:
    taken = []
    for line in lines:
        taken.append(line)
        if line == last:
            break
    return taken


def test_quick_changes_are_sent_as_one(store: StatusStore, web: httpx.Client) -> None:
    with web.stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        take_until(lines, "event: frame")
        begun = time.monotonic()
        for number in range(50):
            store.update(round=number, phase="finished" if number == 49 else "training")
            time.sleep(0.01)
        sent: list[str] = []
        while not any("phase-finished" in line for line in sent):
            sent.append(next(lines))
    assert 1 <= sent.count("event: status") <= 2 + (time.monotonic() - begun) / FRAME_SECONDS


def test_stop_ends_open_streams(store: StatusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    server = PageServer(store)
    server.start()
    with httpx.stream("GET", server.url + "events", timeout=60) as stream:
        lines = stream.iter_lines()
        take_until(lines, "event: frame")
        assert stops_at_once(server, monkeypatch)
        assert "event: frame" not in list(lines)
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


# --- the schema ------------------------------------------------------------------------------------------


# The event streams have no end, so a generated request would never finish. They have their own tests.
def test_answers_keep_to_the_schema(tmp_path: Path) -> None:
    import schemathesis  # here, because it takes a second: no other test needs it

    write_run(tmp_path)
    app = create_app(StatusStore(hostile_snapshot()), folder=tmp_path)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path=["/events", "/api/v1/stream"])
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) == 16
    for operation in operations:

        @given(operation.as_strategy())
        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: schemathesis.Case[Any]) -> None:
            case.call_and_validate()

        check()


def test_schema_describes_every_operation(tmp_path: Path) -> None:
    paths = create_app(StatusStore(), folder=tmp_path).openapi()["paths"]
    names = ("snapshot", "rounds", "boards", "events", "replies", "coverage", "stream", "result", "model", "runs")
    first = {"/", "/events", "/api/status", "/api/rounds", "/healthz", "/metrics"}
    assert set(paths) == first | {f"/api/v1/{name}" for name in (*names, "files/{name}", "runs/{id}/curves")}
    assert all(path["get"]["summary"] for path in paths.values())
