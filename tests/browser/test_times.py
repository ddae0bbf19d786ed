"""The times on the page in a real browser, whose clock and zone differ from the server's."""

from __future__ import annotations

from typing import Any

from tests.support.example_runs import running
from tests.support.visit import Visit, sync_api, visit_page

from fedquilt_server.status.run_event import RunEvent


def test_times_are_those_of_the_reader_s_zone(browser: Any) -> None:
    long_ago = 1.6e9  # 2020-09-13 12:26:40 UTC
    event = RunEvent(at=long_ago, kind="started", text="Run 1 began")
    for recorded in (False, True):
        run = running(started_at=long_ago, events=[event], recorded=recorded)
        with visit_page(browser, run, timezone_id="Asia/Tokyo") as visit:
            sync_api.expect(visit.test("started")).to_have_text("2020-09-13 21:26:40")
            visit.expect("events", "21:26:40")


SKEWS = """async (delays) => {
  const { href } = document.querySelector("link[href$='/clock.js']");
  const { setClock, now } = await import(`${href}?another`);
  return delays.map((delay) => {
    setClock(Date.now() / 1000 + delay);
    return Math.round(10 * (now() - Date.now() / 1000)) / 10;
  });
}"""


def test_the_delay_of_the_stream_is_no_difference_between_the_clocks(visit: Visit) -> None:
    assert visit.page.evaluate(SKEWS, [-1.5, -0.1, -9.0]) == [0.0, 0.0, 0.0]
    assert visit.page.evaluate(SKEWS.replace("?another", "?third"), [98.5, 100.0, 97.0]) == [98.5, 100.0, 100.0]
