"""The status page in a real browser: it follows a run, runs no hostile text and contacts no other host."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.example_runs import row, running
from tests.support.visit import HOSTILE, Visit, sync_api, visit_page

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import BoardStatus

# Count the canvas' pixels that have nearly the colour of a quantity.
PIXELS = """([selector, name]) => {
  const shown = document.querySelector(selector);
  const canvas = Object.assign(document.createElement("canvas"), { width: shown.width, height: shown.height });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(shown, 0, 0);
  const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const want = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 200 && want.every((part, j) => Math.abs(part - data[i + j]) < 12)) count += 1;
  }
  return count;
}"""

# Scroll the timeline to its beginning, and wait until the page has noticed.
SCROLL_BACK = """() => new Promise((done) => {
  const shown = document.getElementById("timeline");
  shown.addEventListener("scroll", () => requestAnimationFrame(() => setTimeout(done)), { once: true });
  shown.scrollLeft = 0;
})"""

# Keep the texts, and the widths of the rectangles, that each chart draws from now on.
RECORD_DRAWING = """(charts) => {
  window.drawn = Object.fromEntries(charts.map((chart) => [chart, { texts: [], widths: [] }]));
  const pen = CanvasRenderingContext2D.prototype;
  const { fillText, fillRect } = pen;
  const drawnBy = (one) => window.drawn[charts.find((chart) => one.canvas.closest(`#${chart}`))];
  pen.fillText = function (text, ...rest) {
    drawnBy(this)?.texts.push(text);
    return fillText.call(this, text, ...rest);
  };
  pen.fillRect = function (x, y, width, ...rest) {
    drawnBy(this)?.widths.push(width);
    return fillRect.call(this, x, y, width, ...rest);
  };
}"""


def expect_pixels(visit: Visit, selector: str, quantity: str, count: int) -> None:
    """Wait until a canvas has more than ``count`` pixels in the colour of a quantity."""
    visit.page.wait_for_function(f"(canvas) => ({PIXELS})(canvas) > {count}", arg=[selector, quantity])


# Curves


def test_curves_are_drawn(visit: Visit) -> None:
    for chart, quantity in (("value", "accuracy"), ("loss", "loss"), ("traffic", "up"), ("time", "training")):
        visit.wait_points(f"{chart}-chart", 20)
        expect_pixels(visit, f"#{chart}-chart canvas", quantity, 100)
        assert "in round 20" in (visit.test(f"{chart}-chart").get_attribute("aria-label") or "")


@contextmanager
def drawing(browser: Any, charts: Collection[str], history: list[RoundResult], width: int = 1440) -> Iterator[Visit]:
    """Open the page of a run and let it draw one more round, the last one, into charts: see ``window.drawn``."""
    viewport = {"width": width, "height": 900}
    with visit_page(browser, running(history=history[:-1], round=len(history)), viewport=viewport) as visit:
        for chart in charts:
            visit.wait_points(chart, len(history) - 1)
        visit.page.evaluate(RECORD_DRAWING, list(charts))
        visit.store.update(history=history)
        for chart in charts:
            visit.wait_points(chart, len(history))
        yield visit


def drawn(visit: Visit, chart: str, condition: str) -> Any:
    """Wait until the condition on what the chart has ``drawn`` holds; returns its texts and widths."""
    visit.page.wait_for_function(f"(chart) => {{ const drawn = window.drawn[chart]; return {condition}; }}", arg=chart)
    return visit.page.evaluate("(chart) => window.drawn[chart]", chart)


@pytest.mark.parametrize(("rounds", "width"), [(40, 1440), (20, 1280)])
def test_the_axis_names_every_ten_rounds_and_marks_do_not_merge(rounds: int, width: int, browser: Any) -> None:
    with drawing(browser, ["traffic-chart"], [row(number) for number in range(1, rounds + 1)], width) as visit:
        found = drawn(visit, "traffic-chart", "drawn.texts.length > 0")
    assert {str(number) for number in range(10, rounds + 1, 10)} <= set(found["texts"])
    assert 8 not in found["widths"], "the marks are squares of 8 pixels"


def test_few_rounds_have_marks(browser: Any) -> None:
    with drawing(browser, ["traffic-chart"], [row(number) for number in range(1, 11)]) as visit:
        drawn(visit, "traffic-chart", "drawn.widths.includes(8)")


UNITS = {"%": 1, "s": 1, "B": 1, "kB": 1e3, "MB": 1e6, "J": 1, "kJ": 1e3}
QUANTITIES = {
    "time-chart": ["seconds", "train_seconds", "overhead_seconds"],
    "traffic-chart": ["bytes_up", "bytes_down"],
    "energy-chart": ["joules"],
    "value-chart": ["accuracy"],
}


def number_of(label: str) -> float:
    number, unit = label.split(" ")
    return float(number) * UNITS[unit]


@pytest.mark.parametrize("factor", [0.002, 0.12, 1.0])
def test_labels_are_the_numbers_of_their_lines(factor: float, browser: Any) -> None:
    """The lines of an axis have equal distances, so rounded labels would not."""

    def scaled(number: int) -> RoundResult:
        one = row(number)
        fields = [field for names in QUANTITIES.values() for field in names]
        return one.model_copy(update={field: factor * getattr(one, field) for field in fields})

    with drawing(browser, QUANTITIES, [scaled(number) for number in range(1, 11)]) as visit:
        found = {chart: drawn(visit, chart, "drawn.texts.some((one) => one.includes(' '))") for chart in QUANTITIES}
    for chart, one in found.items():
        values = sorted(number_of(text) for text in set(one["texts"]) if " " in text)
        assert len(values) > 2, chart
        assert np.diff(values) == pytest.approx(values[1] - values[0]), chart


@pytest.mark.quick
def test_page_follows_the_run(visit: Visit) -> None:
    visit.expect("round", "21")
    visit.wait_points("value-chart", 20)
    visit.store.update(round=22, phase="evaluating", history=[*visit.store.current.history, row(21)])
    visit.expect("round", "22")
    visit.expect("phase", "evaluating")
    visit.expect("accuracy", f"{100 * (row(21).accuracy or 0):.1f} %")
    visit.wait_points("value-chart", 21)
    rows = visit.test("rounds").locator("tbody tr")
    sync_api.expect(rows.first).to_contain_text("21")
    assert rows.count() == 20


def test_the_pointer_keeps_its_place_when_a_round_is_added(visit: Visit) -> None:
    visit.wait_points("value-chart", 20)
    visit.page.locator("#value-chart .u-over").hover(position={"x": 60, "y": 40})
    legend = visit.page.locator("#value-chart .u-legend")
    before = legend.inner_text()
    assert "92.8" not in before  # not the latest value
    visit.page.evaluate("document.querySelector('#value-chart canvas').kept = true")
    visit.store.update(history=[*visit.store.current.history, row(21)])
    visit.wait_points("value-chart", 21)
    assert visit.page.evaluate("document.querySelector('#value-chart canvas').kept")
    moved = legend.inner_text()
    assert "93.6" not in moved, "the legend shows the round below the pointer, not the latest"


def test_nothing_moves_when_values_change(visit: Visit) -> None:
    places = "() => [...document.querySelectorAll('main > *, .tile')].map((one) => one.getBoundingClientRect().top)"
    visit.wait_points("time-chart", 20)
    visit.page.wait_for_selector("#timeline-text:not(:empty)")
    before = visit.page.evaluate(places)
    hot = [board.model_copy(update={"temperature": 99.9, "accepted": 12345}) for board in visit.store.current.boards]
    visit.store.update(round=22, boards=hot, history=[*visit.store.current.history, row(21)])
    visit.wait_points("time-chart", 21)
    visit.page.mouse.move(500, 560)
    assert visit.page.evaluate(places) == before


def test_a_truncated_axis_is_marked(visit: Visit) -> None:
    sync_api.expect(visit.page.locator("#value-note")).to_contain_text("axis begins at")
    visit.page.check("#curve-zero")
    sync_api.expect(visit.page.locator("#value-note")).to_be_empty()
    assert visit.page.locator("#traffic-note").inner_text() == ""


def test_the_curves_can_be_drawn_against_bytes_and_seconds(visit: Visit) -> None:
    visit.wait_points("value-chart", 20)
    for axis in ("bytes", "seconds", "round"):
        visit.page.select_option("#curve-x", axis)
        visit.wait_points("value-chart", 20)


def test_a_run_of_another_task_has_the_curve_of_its_metric(visit: Visit) -> None:
    visit.wait_points("value-chart", 20)
    shown: dict[str, tuple[dict[str, Any], str]] = {
        "mAP-50": ({"scores": {"map50": 0.125, "map50_95": 0.25}}, "12.50 %"),
        "R\N{SUPERSCRIPT TWO}": ({"scores": {}, "r2": -2.5}, "-2.5000"),
    }
    for title, (scores, text) in shown.items():
        history = [one.model_copy(update={"accuracy": None, **scores}) for one in visit.store.current.history]
        visit.store.update(history=[one.model_copy(update={"loss": 0.5}) for one in history])
        sync_api.expect(visit.page.locator("#value-title")).to_have_text(title)
        sync_api.expect(visit.test("value-chart").locator(".u-legend")).to_contain_text(text)


def test_personal_accuracy_has_a_tile_a_curve_and_a_column(visit: Visit) -> None:
    visit.wait_points("value-chart", 20)
    assert visit.test("personal").count() == 0
    own = [one.model_copy(update={"global_accuracy": one.accuracy, "personal_accuracy": 0.9 + one.round / 1000})
           for one in visit.store.current.history]  # fmt: skip
    last = row(21).model_copy(update={"global_accuracy": 0.5, "personal_accuracy": 0.987})
    visit.store.update(history=[*own, last])
    visit.expect("personal", "98.7 %")
    visit.expect("rounds", "Personal")
    visit.wait_points("value-chart", 21)
    legend = visit.test("value-chart").locator(".u-legend")
    sync_api.expect(legend).to_contain_text("Global")
    sync_api.expect(legend).to_contain_text("98.70 %")


# Timeline and quilt


def test_the_timeline_shows_who_is_slow(visit: Visit) -> None:
    visit.page.wait_for_selector("#timeline-text:not(:empty)")
    sync_api.expect(visit.page.locator("#timeline-text")).to_contain_text("Slowest: pi4-1. 1 board with replies")
    for quantity in ("training", "lost"):
        expect_pixels(visit, "#timeline-canvas", quantity, 100)
    box = visit.page.locator("#timeline").bounding_box()
    visit.page.mouse.move(box["x"] + 200, box["y"] + 90)
    sync_api.expect(visit.page.locator("#tip")).to_contain_text("train:")
    visit.page.locator("#timeline-details summary").click()
    rows = visit.test("timeline-rows").locator("tr")
    assert [rows.nth(i).locator("th").inner_text() for i in (0, 2, 4)] == ["jetson-1", "pi4-1", "pi5-1"]
    sync_api.expect(rows.nth(2)).to_contain_text("missing")


def test_the_timeline_scrolls_back(visit: Visit) -> None:
    visit.page.wait_for_selector("#timeline-text:not(:empty)")
    visit.page.click("#timeline-in")
    at = "document.getElementById('timeline').scrollLeft"
    visit.page.wait_for_function(f"() => {at} > 300")
    visit.page.evaluate(SCROLL_BACK)
    visit.store.update(awaited=[2])
    visit.expect("awaited", "client 2")
    assert visit.page.evaluate(at) == 0


def test_the_quilt_shows_channels_and_boards(visit: Visit) -> None:
    sync_api.expect(visit.page.locator("#quilt-text")).to_contain_text("20 rounds. All channels were trained. Darker:")
    expect_pixels(visit, "#quilt-canvas", "quilt", 500)
    visit.page.select_option("#quilt-view", "boards")
    visit.page.locator("#quilt").hover(position={"x": 200, "y": 25})
    sync_api.expect(visit.page.locator("#tip")).to_contain_text("of the layer")
    visit.page.locator("#quilt-details summary").click()
    assert visit.page.locator("#quilt-rows tr").count() == 6


def test_a_run_that_trains_whole_models_has_an_empty_quilt(browser: Any) -> None:
    with visit_page(browser, running(coverage=None)) as visit:
        visit.expect("quilt-empty", "No client has trained a sub-model yet")


# Events and texts


def test_events_appear_on_top_and_can_be_filtered(visit: Visit) -> None:
    events = visit.test("events").locator("li")
    count = events.count()
    new = RunEvent(at=visit.store.current.events[0].at + 5, kind="diverged", level="error", text="The loss exploded.")
    visit.store.update(events=[new, *visit.store.current.events])
    sync_api.expect(events).to_have_count(count + 1)
    sync_api.expect(events.first).to_contain_text("The loss exploded.")
    visit.page.select_option("#event-level", "error")
    sync_api.expect(visit.test("events").locator("li:visible")).to_have_count(2)
    visit.page.fill("#event-filter", "digest")
    sync_api.expect(visit.test("events").locator("li:visible")).to_have_count(1)


def test_hostile_text_is_not_run(visit: Visit) -> None:
    evil = BoardStatus(agent=HOSTILE, kind=HOSTILE, health="hot", reason=HOSTILE, last_seen=1.0)
    event = RunEvent(at=1.0, kind="late", board=HOSTILE, text=HOSTILE)
    texts = {"name": HOSTILE, "message": HOSTILE, "warning": HOSTILE}
    visit.store.update(**texts, boards=[evil], events=[event])
    visit.expect("boards", "<script>window.hacked = 1</script>")
    visit.expect("events", "onerror='window.hacked = 2'")
    visit.store.update(boards=[evil.model_copy(update={"reason": HOSTILE + "2"})])
    visit.expect("boards", "window.hacked = 2'>2")
    visit.page.reload()
    visit.expect("boards", "<script>window.hacked = 1</script>")
    visit.page.click("#boards .open")
    visit.expect("drawer", HOSTILE)
    assert visit.page.evaluate("window.hacked === undefined")


def test_nothing_is_asked_of_another_host(visit: Visit) -> None:
    visit.wait_points("loss-chart", 20)
    assert len(visit.requests) >= 20
    assert [url for url in visit.requests if not url.startswith(visit.server.url)] == []


# Size


LOOKS = {
    "status-page": (1440, 900, "light"),
    "status-page-dark": (1440, 900, "dark"),
    "status-page-tablet": (800, 1000, "light"),
    "status-page-phone": (390, 844, "light"),
}


@pytest.mark.parametrize("first", ["status-page", "status-page-phone"])
def test_page_fits_the_screen(browser: Any, first: str) -> None:
    """Also if its window changes. If FEDQUILT_SCREENSHOTS names a folder, write the documentation's pictures there."""
    width, height, _ = LOOKS[first]
    with visit_page(browser, running(40), viewport={"width": width, "height": height}) as visit:
        visit.wait_points("loss-chart", 20)
        for look, (width, height, theme) in LOOKS.items():
            visit.page.set_viewport_size({"width": width, "height": height})
            visit.page.emulate_media(color_scheme=theme)
            visit.page.wait_for_function(f"() => innerWidth === {width}")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            visit.page.wait_for_function(f"() => {wide} === 0")
            folder = os.environ.get("FEDQUILT_SCREENSHOTS")
            if folder:
                visit.page.wait_for_timeout(1500)
                visit.page.screenshot(path=Path(folder) / f"{look}.png", full_page=True, animations="disabled")


CUT_OFF = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute("aria-label"))"""


def test_a_small_laptop_shows_all_columns(browser: Any) -> None:
    with visit_page(browser, running(40), viewport={"width": 1280, "height": 800}) as visit:
        visit.page.click("button[data-view=table]")
        visit.wait_points("energy-chart", 20)
        assert visit.page.evaluate(CUT_OFF) == []
        tops = "() => [...document.querySelectorAll('#charts figure')].map((one) => one.getBoundingClientRect().top)"
        assert len(set(visit.page.evaluate(tops))) == 1, "the five charts are in one row"


LEVELS = {str(client): ("L1", "M1", "M2", "M3", "S1", "S2", "S3")[client % 7] for client in range(140)}


@pytest.mark.parametrize(
    "changes", [{"trained": LEVELS, "waste_rate": 0.2}, {"global_accuracy": 0.8, "personal_accuracy": 0.9}]
)
def test_a_small_laptop_shows_all_columns_of_each_kind_of_rounds(changes: dict[str, Any], browser: Any) -> None:
    history = [row(number).model_copy(update=changes) for number in range(1, 21)]
    history[3] = history[3].model_copy(update={"trained": {"0": "L1"}})
    with visit_page(browser, running(history=history), viewport={"width": 1280, "height": 800}) as visit:
        visit.wait_points("loss-chart", 20)
        assert visit.page.evaluate(CUT_OFF) == []
        heights = (
            "() => [...document.querySelectorAll('.rounds tbody tr')].map((one) => one.getBoundingClientRect().height)"
        )
        assert len(set(visit.page.evaluate(heights))) == 1, "no row of the rounds has two lines"


@pytest.mark.parametrize(("boards", "most"), [(100, 2050), (40, 1850)])
def test_many_boards_make_no_long_page(browser: Any, boards: int, most: int) -> None:
    with visit_page(browser, running(boards)) as visit:
        visit.wait_points("loss-chart", 20)
        sync_api.expect(visit.page.locator("#quilt")).to_be_visible()
        assert visit.page.evaluate("document.documentElement.scrollHeight") < most


def test_two_hundred_boards_fit_one_screen(browser: Any) -> None:
    with visit_page(browser, running(200)) as visit:
        assert visit.page.locator("#boards tr").count() == 200
        assert visit.page.locator("#boards-card").bounding_box()["height"] < 900
