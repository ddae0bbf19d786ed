"""The status page in a real browser: it follows a run, runs no hostile text and contacts no other host."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import BoardStatus, RejectedReply, Snapshot, StatusStore
from fedquilt_server.web.server import PageServer

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: use make test")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH: sudo apt-get install chromium")

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
GIB = 2**30


def row(number: int) -> RoundResult:
    """Return the result of a round of a run that learns, with the same numbers each time."""
    training = 6.5 + math.sin(7 * number)
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    scores = {
        "accuracy": 0.95 - 0.75 * math.exp(-number / 5) + 0.01 * math.sin(9 * number),
        "loss": 0.25 + 2 * math.exp(-number / 4),
    }
    times = {"seconds": training + 1.2, "train_seconds": training, "overhead_seconds": 1.2}
    sizes = {"bytes_down": 412_000 + 37 * number, "bytes_up": 3_260_000 + 911 * number}
    counts = {"clients": 6 if number == 7 else 8, "asked": 8, "late": int(number == 7)}
    refused = {"rejected": int(number in (7, 12)), "round": number}
    return RoundResult.model_validate({**zeros, **scores, **times, **sizes, **counts, **refused})


def boards(now: float) -> list[BoardStatus]:
    """Return three boards: one in good state, one hot and short of memory, one offline."""
    jetson = {"kind": "jetson-orin-nano", "clients": [0, 1, 2, 3], "cores": 6, "memory_used": int(5.1 * GIB)}
    pi = {"kind": "raspberry-pi-5", "clients": [4, 5, 6], "cores": 4, "memory_used": int(7.4 * GIB)}
    gone = {"kind": "raspberry-pi-4", "clients": [7], "cores": 4, "online": False}
    known: list[dict[str, Any]] = [
        {"agent": "workshop-jetson", **jetson, "temperature": 61.5, "power": 9.8, "last_seen": now - 1},
        {"agent": "shelf-pi5", **pi, "temperature": 81.2, "last_seen": now - 3},
        {"agent": "garden-pi4", **gone, "last_seen": now - 400},
    ]
    progress = [{0: 1.0, 1: 1.0, 2: 0.72, 3: 0.4}, {4: 1.0, 5: 0.95, 6: 0.1}, {}]
    return [
        BoardStatus.model_validate({"memory_total": 8 * GIB, "training": part, **board})
        for board, part in zip(known, progress, strict=True)
    ]


def rejections(now: float) -> list[RejectedReply]:
    digest = "the digest of chunk 3 is not the one announced"
    finite = "fc1.weight holds numbers that are not finite"
    return [
        RejectedReply(at=now - 55, agent="shelf-pi5", client=6, round=12, reason=digest),
        RejectedReply(at=now - 95, agent="garden-pi4", client=7, round=7, reason=finite),
    ]


def rich_snapshot() -> Snapshot:
    """Return a snapshot after 20 of 40 rounds."""
    now = time.time()
    names = {"name": "digits-fedavg", "run": "20250611-094512", "algorithm": "fedavg", "dataset": "digits"}
    exchange = {"round": 21, "rounds": 40, "exchange": 1, "tasks": 8, "replies": 5, "deadline": now + 42.5}
    counts = {"late": 1, "duplicates": 3, "rejected": 2, "rejections": rejections(now)}
    history = [row(number) for number in range(1, 21)]
    rest = {"phase": "training", "broker_connected": True, "started_at": now - 170, "boards": boards(now)}
    return Snapshot.model_validate({**names, **exchange, **counts, **rest, "history": history})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def store() -> StatusStore:
    return StatusStore(rich_snapshot())


@pytest.fixture
def server(store: StatusStore) -> Iterator[PageServer]:
    with PageServer(store) as running:
        yield running


class Visit:
    """One open page, with its console messages and requests."""

    def __init__(self, browser: Any, server: PageServer, **context: Any) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(**context)
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(server.url)
        self.page.wait_for_selector("[data-testid=live][data-state=live]")

    def expect(self, testid: str, text: str) -> None:
        """Wait until the element contains the text."""
        sync_api.expect(self.page.get_by_test_id(testid)).to_contain_text(text)

    def wait_points(self, chart: str, count: int) -> None:
        """Wait until the curve has ``count`` points."""
        self.page.wait_for_selector(f"[data-testid={chart}][data-points='{count}'] canvas")


@pytest.fixture
def visit(browser: Any, server: PageServer) -> Iterator[Visit]:
    visit = Visit(browser, server)
    yield visit
    visit.page.close()


# Count the canvas' pixels that have nearly the colour of the curve.
PIXELS_OF_CURVE = """name => {
  const canvas = document.querySelector(`[data-testid=${name}] canvas`);
  const css = name === "loss-chart" ? "--curve-2" : "--curve";
  const hex = getComputedStyle(document.documentElement).getPropertyValue(css).trim();
  const want = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 200 && want.every((part, j) => Math.abs(part - data[i + j]) < 12)) count += 1;
  }
  return count;
}"""


@pytest.mark.parametrize("chart", ["accuracy-chart", "loss-chart"])
def test_curves_are_drawn(visit: Visit, chart: str) -> None:
    visit.wait_points(chart, 20)
    assert visit.page.evaluate(PIXELS_OF_CURVE, chart) > 200


def test_page_follows_the_run(visit: Visit, store: StatusStore) -> None:
    visit.expect("round", "21")
    visit.wait_points("accuracy-chart", 20)
    store.update(round=22, phase="evaluating", history=[*store.current.history, row(21)])
    visit.expect("round", "22")
    visit.expect("phase", "evaluating")
    visit.expect("accuracy", f"{100 * (row(21).accuracy or 0):.1f} %")
    visit.wait_points("accuracy-chart", 21)
    assert visit.errors == []


def test_personal_accuracy_has_a_tile_a_curve_and_a_column(visit: Visit, store: StatusStore) -> None:
    visit.wait_points("accuracy-chart", 20)
    assert visit.page.get_by_test_id("personal").count() == 0
    own = [one.model_copy(update={"global_accuracy": one.accuracy, "personal_accuracy": 0.9 + one.round / 1000})
           for one in store.current.history]  # fmt: skip
    store.update(history=[*own, row(21).model_copy(update={"global_accuracy": 0.5, "personal_accuracy": 0.987})])
    visit.expect("personal", "98.7 %")
    visit.expect("rounds", "Personal")
    visit.expect("rounds", "98.7 %")
    visit.wait_points("accuracy-chart", 21)
    legend = visit.page.get_by_test_id("accuracy-chart").locator(".u-legend")
    sync_api.expect(legend).to_contain_text("Global")
    sync_api.expect(legend).to_contain_text("98.70 %")
    assert visit.errors == []


def test_page_shows_boards_and_rejections(visit: Visit) -> None:
    visit.expect("boards", "garden-pi4")
    visit.expect("boards", "6 min ago")
    visit.expect("rejections", "shelf-pi5, client 6, round 12: the digest")
    visit.expect("deadline", "closes in 0:")
    assert visit.page.title() == "21 · digits-fedavg · fedquilt"


def test_hostile_text_is_not_run(visit: Visit, store: StatusStore) -> None:
    evil = BoardStatus(agent=HOSTILE, kind=HOSTILE, last_seen=1.0)
    reply = RejectedReply(at=1.0, agent=HOSTILE, client=1, round=1, reason=HOSTILE)
    store.update(name=HOSTILE, message=HOSTILE, boards=[evil], rejections=[reply])
    visit.expect("boards", "<script>window.hacked = 1</script>")
    visit.expect("rejections", "onerror='window.hacked = 2'")
    visit.page.reload()
    visit.expect("boards", "<script>window.hacked = 1</script>")
    assert visit.page.evaluate("window.hacked === undefined")
    assert visit.errors == []


def test_nothing_is_asked_of_another_host(visit: Visit, server: PageServer) -> None:
    visit.wait_points("loss-chart", 20)
    assert len(visit.requests) >= 8
    assert [url for url in visit.requests if not url.startswith(server.url)] == []
    assert visit.errors == []


def test_lost_connection_is_told_and_mended(visit: Visit, server: PageServer, store: StatusStore) -> None:
    port = int(server.url.rstrip("/").rpartition(":")[2])
    server.stop()
    visit.expect("banner", "Connection to the coordinator lost")
    fresh = StatusStore(rich_snapshot().model_copy(update={"round": 3, "history": [row(1), row(2)]}))
    with PageServer(fresh, port=port):
        visit.expect("round", "3")
        visit.wait_points("accuracy-chart", 2)
        sync_api.expect(visit.page.get_by_test_id("banner")).to_be_hidden()
        visit.page.close()


def test_a_silent_stream_is_opened_anew(visit: Visit, store: StatusStore) -> None:
    """In a dead network, the stream stays open without events. Here, the clock jumps instead."""
    visit.page.evaluate("() => { const real = Date.now; Date.now = () => real() + 20000; }")
    visit.expect("live", "lost")
    visit.expect("live", "live")
    store.update(round=30)
    visit.expect("round", "30")
    assert sum(url.endswith("/events") for url in visit.requests) == 2


def test_the_end_of_a_run_is_no_lost_connection(visit: Visit, server: PageServer, store: StatusStore) -> None:
    store.update(phase="finished")
    visit.expect("phase", "finished")
    server.stop()
    visit.expect("banner", "The coordinator has stopped")


LOOKS = {
    "status-page": {"viewport": {"width": 1280, "height": 1180}, "color_scheme": "light"},
    "status-page-dark": {"viewport": {"width": 1280, "height": 1180}, "color_scheme": "dark"},
    "status-page-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


@pytest.mark.parametrize("look", LOOKS)
def test_page_fits_the_screen(browser: Any, server: PageServer, look: str) -> None:
    """If FEDQUILT_SCREENSHOTS names a folder, also write the pictures of the documentation there."""
    visit = Visit(browser, server, **LOOKS[look])
    visit.wait_points("loss-chart", 20)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert visit.page.evaluate(wide) == 0
    folder = os.environ.get("FEDQUILT_SCREENSHOTS")
    if folder:
        visit.page.wait_for_timeout(600)
        visit.page.screenshot(path=Path(folder) / f"{look}.png", animations="disabled")
    assert visit.errors == []
    visit.page.close()
