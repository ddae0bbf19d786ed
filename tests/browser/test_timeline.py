"""The timeline of the replies in a real browser: what its canvas shows, and the place that the page keeps for it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tests.support.example_runs import running
from tests.support.visit import Visit, visit_page

from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.units import DASH

# Keep the texts that the timeline draws from now on.
RECORD_TEXTS = """() => {
  window.texts = [];
  const pen = CanvasRenderingContext2D.prototype;
  const { fillText } = pen;
  pen.fillText = function (text, ...rest) {
    if (this.canvas.id === "timeline-canvas") window.texts.push(text);
    return fillText.call(this, text, ...rest);
  };
}"""


def test_the_first_round_that_is_shown_has_a_label(visit: Visit) -> None:
    """It begins at the left edge of the bars, but for an error of rounding."""
    visit.page.wait_for_selector("#timeline-text:not(:empty)")
    visit.page.evaluate(RECORD_TEXTS)
    for button in ("timeline-in", "timeline-out"):
        visit.page.click(f"#{button}")
    rounds = ["round 19", "round 20", "round 21"]
    visit.page.wait_for_function("(all) => all.every((one) => window.texts.includes(one))", arg=rounds)


# Sum how far the parts of the page move after they have been painted first.
WATCH_SHIFTS = """
  window.shift = 0;
  const add = (list) => { for (const one of list.getEntries()) window.shift += one.value; };
  new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize("boards", [3, 40])
@pytest.mark.parametrize("slower", [1, 16])
def test_nothing_moves_while_the_page_opens(slower: int, boards: int, browser: Any) -> None:
    """The server keeps the heights free of what the script draws later, and a slow machine paints only a whole page."""
    with visit_page(browser, running(boards), viewport={"width": 1440, "height": 2400}) as visit:
        visit.page.add_init_script(WATCH_SHIFTS)
        processor = visit.page.context.new_cdp_session(visit.page)
        processor.send("Emulation.setCPUThrottlingRate", {"rate": slower})
        visit.page.reload()
        visit.page.wait_for_selector("#timeline-text:not(:empty)")
        visit.page.wait_for_selector("#quilt-text:not(:empty)")
        visit.page.wait_for_timeout(500)
        assert visit.page.evaluate("window.shift") < 0.01


@pytest.mark.parametrize("boards", [1, 3, 40])
def test_the_height_of_the_timeline_is_known_before_it_is_drawn(boards: int, browser: Any) -> None:
    with visit_page(browser, running(boards)) as visit:
        before = re.search(
            r'id="timeline-canvas" width="1" height="(\d+)"', httpx.get(visit.server.url, timeout=60).text
        )
        visit.page.wait_for_selector("#timeline-text:not(:empty)")
        assert before is not None
        assert visit.page.locator("#timeline").bounding_box()["height"] == pytest.approx(int(before[1]), abs=1)


def closed_exchanges() -> Snapshot:
    """Return a run of one round, in whose second exchange clients only test, with times that do not fit milliseconds.

    The exchange closes with the reply of client 2, before the end of the millisecond in which it arrived.
    """
    spans = {  # outcome, and seconds: training, until the reply began, until it arrived
        0: ("accepted", None, 0.11, 0.1249),
        1: ("late", 9.0, 0.0, 0.625),
        2: ("accepted", 0.4999, 0.5555, 0.8756),
        3: ("rejected", 0.0551, 0.1115, 0.2225),
        4: ("missing", None, None, None),
    }
    begin = 1e6
    rows = [
        ReplyRow.model_validate({
            "round": 1, "exchange": exchange, "client": client, "agent": "jetson-1", "outcome": outcome,
            "train_seconds": 1.25 if exchange == 0 else train, "opened_at": begin + 10 * exchange,
            "began_at": None if began is None else begin + 10 * exchange + began,
            "arrived_at": None if arrived is None else begin + 10 * exchange + arrived,
            "closed_at": begin + 10 * exchange + 0.8756,
        })
        for exchange in (0, 1)
        for client, (outcome, train, began, arrived) in spans.items()
    ]  # fmt: skip
    return running(phase="averaging", awaited=[], opened_at=None, reply_rows=rows)


def cells_of(page: Any, table: str) -> list[list[str]]:
    script = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    found: list[list[str]] = page.eval_on_selector_all(f"#{table} tr", script)
    return found


def test_the_table_of_replies_is_the_same_without_javascript(browser: Any) -> None:
    snapshot = closed_exchanges()
    with visit_page(browser, snapshot, java_script_enabled=False) as visit:
        html = visit.page.content()
    with visit_page(browser, snapshot) as visit:
        visit.page.wait_for_selector("#timeline-text:not(:empty)")
        visit.page.click("#timeline-details summary")
        visit.page.wait_for_selector("#timeline-rows tr[data-key]")
        drawn = cells_of(visit.page, "timeline-rows")
        visit.page.click("#boards tr[data-agent=jetson-1] .open")
        listed = cells_of(visit.page, "drawer-replies")
    table = html.partition('id="timeline-rows"')[2].partition("</tbody>")[0]
    served = [re.findall(r"<t[hd][^>]*>(?:<bdi>)?([^<]*)<", row) for row in table.split("</tr>")[:-1]]
    assert drawn == served
    assert drawn[0][1:6] == ["0", DASH, DASH, "0.01 s", "0.75 s"]
    assert drawn[2][5] == "0.00 s"
    assert [cells[:2] for cells in listed] == [["1", "2"]] * 5 + [["1", "1"]] * 5
    assert [cells[2:] for cells in listed[:5]] == [cells[1:] for cells in drawn]
