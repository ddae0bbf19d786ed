"""The page's connection in a real browser: a lost one is shown, stops the page's clock and comes back."""

from __future__ import annotations

from typing import Any

from tests.support.example_runs import row, running
from tests.support.visit import Visit, sync_api, unexpected

from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.server import PageServer

RELATIVE_TIMES = "() => [...document.querySelectorAll('[data-ago], [data-deadline]')].map((one) => one.textContent)"
LATER = "(seconds) => { const real = Date.now; Date.now = () => real() + 1000 * seconds; }"


def visit_and_stop(browser: Any) -> tuple[Visit, int]:
    """Open the page of a run and end its server; also return the server's port."""
    store = StatusStore(running())
    server = PageServer(store)
    server.start()
    visit = Visit(browser, server, store)
    server.stop()
    return visit, int(server.url.rstrip("/").rpartition(":")[2])


def assert_clock_stands(visit: Visit) -> None:
    """Without news, nobody knows how long a board is silent or a round lasts."""
    before = visit.page.evaluate(RELATIVE_TIMES)
    visit.page.evaluate(LATER, 100)
    visit.page.wait_for_timeout(1500)
    assert visit.page.evaluate(RELATIVE_TIMES) == before


def test_a_lost_connection_is_shown_stops_the_clock_and_comes_back(browser: Any) -> None:
    visit, port = visit_and_stop(browser)
    visit.expect("banner", "Connection to the coordinator lost. The page shows the state at ")
    assert_clock_stands(visit)
    fresh = StatusStore(running(5, round=3, history=[row(1), row(2)]))
    with PageServer(fresh, port=port):
        visit.expect("round", "3")
        visit.wait_points("value-chart", 2)
        sync_api.expect(visit.test("banner")).to_be_hidden()
        sync_api.expect(visit.page.locator("#boards tr")).to_have_count(5)
        sync_api.expect(visit.test("deadline")).to_have_text("deadline passed")  # the clock runs again
        visit.page.close()
    assert unexpected(visit.errors) == []


def test_the_page_keeps_its_state_until_a_restarted_coordinator_has_loaded(browser: Any) -> None:
    visit, port = visit_and_stop(browser)
    visit.expect("banner", "Connection to the coordinator lost")
    fresh = StatusStore(Snapshot())
    with PageServer(fresh, port=port):
        visit.expect("banner", "The coordinator is starting. The page shows the state at ")
        visit.expect("round", "21")
        visit.wait_points("value-chart", 20)
        sync_api.expect(visit.page.locator("#boards tr")).to_have_count(3)
        fresh.update(**dict(running(5, round=22)))
        visit.expect("round", "22")
        sync_api.expect(visit.test("banner")).to_be_hidden()
        sync_api.expect(visit.page.locator("#boards tr")).to_have_count(5)
        visit.page.close()
    assert unexpected(visit.errors) == []


def test_a_silent_stream_is_opened_anew(visit: Visit) -> None:
    """In a dead network, the stream stays open without events. Here, the clock jumps instead."""
    held = list[Any]()
    visit.page.route("**/events?frame=*", lambda route: held.append(route))  # so that the loss can be seen
    visit.page.evaluate(LATER, 20)
    visit.expect("live", "lost")
    while not held:
        visit.page.wait_for_timeout(20)
    held.pop().continue_()
    visit.expect("live", "live")
    visit.store.update(round=30)
    visit.expect("round", "30")
    streams = [url for url in visit.requests if "/events?frame=" in url]
    assert len(streams) == 2
    assert streams[0].endswith(".bare")
    assert not streams[1].endswith(".bare"), "the page asks only for what it missed"


def test_the_end_of_a_run_is_no_lost_connection(browser: Any) -> None:
    store = StatusStore(running())
    server = PageServer(store)
    server.start()
    visit = Visit(browser, server, store)
    store.update(phase="finished")
    visit.expect("phase", "finished")
    visit.expect("live", "ended")
    server.stop()
    visit.expect("banner", "The coordinator has stopped")
    visit.page.close()
