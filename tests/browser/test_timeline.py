"""The timeline of the replies in a real browser: what its canvas shows, and the place that the page keeps for it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tests.support.example_runs import running
from tests.support.visit import Visit, visit_page

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
