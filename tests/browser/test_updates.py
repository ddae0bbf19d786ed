"""Updates of the page in a real browser: they change what differs, and leave the reader's selection and focus alone."""

from __future__ import annotations

import time
from typing import Any

from tests.support.example_runs import row, running, waiting
from tests.support.visit import Visit, sync_api, visit_page

SELECT = """(selector) => getSelection().selectAllChildren(document.querySelector(selector))"""
SELECTED = "String(getSelection())"


def selected(visit: Visit) -> str:
    return str(visit.page.evaluate(SELECTED))


def test_a_selected_text_stays_selected(visit: Visit) -> None:
    visit.page.evaluate(SELECT, "[aria-label=Run] .title dl")
    facts = selected(visit)
    visit.store.update(round=22, warning="pi4-1 is slow", history=[*visit.store.current.history, row(21)])
    visit.expect("round", "22")
    visit.expect("problem", "pi4-1 is slow")
    assert "digits" in facts
    kept = selected(visit)
    visit.page.evaluate(SELECT, "[aria-label=Run] .title dl")
    assert kept == selected(visit)
    # A page on a busy machine corrects the last line, the start, when it knows the server's clock better.
    assert kept.split("\n")[:-1] == facts.split("\n")[:-1]


def test_a_selected_value_stays_selected_when_it_changes(visit: Visit) -> None:
    visit.page.evaluate(SELECT, "#boards [data-agent=pi5-1] [data-cell=temperature]")
    assert selected(visit) == "81.2\N{NO-BREAK SPACE}°C"
    hot = [board.model_copy(update={"temperature": 82.5}) for board in visit.store.current.boards]
    visit.store.update(boards=hot)
    visit.expect("boards", "82.5")
    assert selected(visit) == "82.5\N{NO-BREAK SPACE}°C"


def test_a_selected_event_stays_selected_in_the_drawer(visit: Visit) -> None:
    visit.page.click("#boards tr[data-agent=pi5-1] .open")
    visit.page.evaluate(SELECT, "#drawer-events li > :last-child")
    event = selected(visit)
    assert "digest" in event
    # On a busy machine, the page corrects the times when it knows the server's clock better.
    visit.page.evaluate("document.querySelectorAll('#events [data-at]').forEach((node) => { node.textContent = '0' })")
    new = visit.store.current.events[1].model_copy(update={"text": "Again.", "board": "pi5-1"})
    visit.store.update(events=[new, *visit.store.current.events])
    visit.expect("drawer", "Again.")
    assert selected(visit) == event


def test_a_button_keeps_the_focus_when_the_list_around_it_changes(browser: Any) -> None:
    with visit_page(browser, waiting()) as visit:
        second = visit.test("missing").locator("li").nth(1)
        words = second.inner_text()
        second.get_by_role("button").focus()
        visit.page.evaluate("document.activeElement.kept = true")
        before = visit.store.current
        first = next(board for board in before.boards if not board.online)
        here = first.model_copy(update={"health": "online", "online": True})
        boards = [here if board is first else board for board in before.boards]
        visit.store.update(boards=boards, awaited=[one for one in before.awaited if one not in first.clients])
        sync_api.expect(visit.test("missing").locator("li")).to_have_count(3)
        assert visit.page.evaluate("document.activeElement.kept")
        assert visit.test("missing").locator("li:focus-within").inner_text() == words


UPDATES = 30


def test_the_page_does_not_grow_with_its_updates(browser: Any) -> None:
    """Nor its listeners. Less than one node for each update is what the browser has not collected yet.

    A busy browser collects later: what remains for a minute has grown.
    """
    with visit_page(browser, running(5)) as visit:
        browser_tools = visit.page.context.new_cdp_session(visit.page)
        browser_tools.send("Performance.enable")

        def count() -> tuple[float, float]:
            browser_tools.send("HeapProfiler.collectGarbage")
            metrics = {one["name"]: one["value"] for one in browser_tools.send("Performance.getMetrics")["metrics"]}
            return metrics["Nodes"], metrics["JSEventListeners"]

        def update(number: int) -> None:
            boards = [one.model_copy(update={"temperature": 50.0 + number}) for one in visit.store.current.boards]
            visit.store.update(round=number, boards=boards, message=f"update {number}")
            visit.expect("round", str(number))

        update(22)
        nodes, listeners = count()
        for number in range(23, 23 + UPDATES):
            update(number)
        end = time.monotonic() + 60
        while (more := count())[0] - nodes >= UPDATES and time.monotonic() < end:
            visit.page.wait_for_timeout(100)
        assert more[0] - nodes < UPDATES
        assert more[1] == listeners
