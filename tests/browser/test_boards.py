"""The boards on the page in a real browser: grid and table, order, filter, groups and the drawer of one board."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support.example_runs import running, waiting
from tests.support.visit import Visit, sync_api, visit_page

from fedquilt_server.status.snapshot import Snapshot


def names(visit: Visit) -> list[str]:
    """Return the boards that are shown, in order."""
    found: list[str] = visit.page.evaluate(
        "() => [...document.querySelectorAll('#boards tr[data-agent]')].filter((row) => !row.hidden)"
        ".map((row) => row.dataset.agent)"
    )
    return found


def test_only_the_changed_cells_change(visit: Visit) -> None:
    visit.page.evaluate("document.querySelector('#boards tr').kept = true")
    worst, *others = visit.store.current.boards[::-1]
    visit.store.update(boards=[*others, worst.model_copy(update={"temperature": 33.3, "memory_used": 2**30})])
    visit.expect("boards", "33.3")
    visit.expect("boards", "1.0 GiB of 8.0 GiB")
    assert visit.page.evaluate("document.querySelector('#boards tr').kept")


def test_boards_that_join_and_leave(visit: Visit) -> None:
    assert names(visit) == ["pi4-1", "pi5-1", "jetson-1"]
    more = running(5).boards
    visit.store.update(boards=more)
    sync_api.expect(visit.page.locator("#boards tr")).to_have_count(5)
    assert names(visit) == ["pi4-1", "pi5-1", "jetson-1", "jetson-2", "pi5-2"]
    visit.store.update(boards=more[:1])
    sync_api.expect(visit.page.locator("#boards tr")).to_have_count(1)
    visit.store.update(boards=[])
    visit.expect("boards", "No board has joined yet")


def test_a_board_that_is_lost_moves_to_the_top(visit: Visit) -> None:
    lost = [
        board.model_copy(update={"health": "offline"} if board.agent == "jetson-1" else {})
        for board in visit.store.current.boards
    ]
    visit.store.update(boards=lost)
    sync_api.expect(visit.page.locator("#boards tr").first).to_contain_text("jetson-1")
    visit.expect("problem", "jetson-1 is offline")
    visit.expect("problem", "and 2 more")


def test_sort_filter_and_group(browser: Any) -> None:
    with visit_page(browser, running(40)) as visit:
        visit.page.click("button[data-view=table]")
        visit.page.click("[data-sort=temperature] button")
        assert names(visit)[0] == "pi5-1"
        assert visit.page.get_attribute("[data-sort=temperature]", "aria-sort") == "descending"
        visit.page.click("[data-sort=agent] button")
        assert names(visit)[8:12] == ["jetson-9", "jetson-10", "jetson-11", "jetson-12"]
        visit.page.fill("#board-filter", "pi5")
        visit.page.wait_for_selector("#boards tr[hidden]", state="attached")
        assert all(name.startswith("pi5") for name in names(visit))
        sync_api.expect(visit.page.locator("#board-count")).to_have_text("13 of 40 boards")
        visit.page.fill("#board-filter", "")
        visit.page.check("#board-group")
        groups = visit.page.locator("#boards .group")
        sync_api.expect(groups).to_have_count(3)
        assert groups.all_inner_texts() == ["jetson-orin-nano (14)", "raspberry-pi-4 (13)", "raspberry-pi-5 (13)"]


def test_a_long_name_keeps_its_number(browser: Any) -> None:
    """The grid's tiles are narrow: the name loses its middle, also for the eyes, but not for assistive technology."""
    run = running(40)
    boards = [one.model_copy(update={"agent": f"raspberry-pi-4-{i:02d}"}) for i, one in enumerate(run.boards)]
    with visit_page(browser, run.model_copy(update={"boards": boards})) as visit:
        tile = visit.page.get_by_role("button", name="raspberry-pi-4-07", exact=True)
        ends = [part.bounding_box() for part in (tile.locator(".stem"), tile.locator(".tail"), tile)]
        assert tile.locator(".tail").inner_text() == "i-4-07"
        stem, tail, whole = (box["x"] + box["width"] for box in ends)
        assert stem < tail <= whole + 1
        assert tile.locator(".stem").evaluate("(stem) => stem.scrollWidth > stem.clientWidth")


def test_a_tile_does_not_show_an_unknown_temperature(browser: Any) -> None:
    run = running(40)
    boards = [run.boards[0].model_copy(update={"temperature": None}), *run.boards[1:]]
    with visit_page(browser, run.model_copy(update={"boards": boards})) as visit:
        shown = visit.page.locator("[data-agent=jetson-1] [data-cell=temperature]")
        sync_api.expect(shown).to_be_hidden()
        for temperature, test in ((50.0, "to_be_visible"), (None, "to_be_hidden")):
            changed = visit.store.current.boards[0].model_copy(update={"temperature": temperature})
            visit.store.update(boards=[changed, *boards[1:]])
            getattr(sync_api.expect(shown), test)()


def test_the_view_is_remembered(browser: Any) -> None:
    with visit_page(browser, running(40)) as visit:
        card = visit.page.locator("#boards-card")
        assert card.get_attribute("data-view") == "grid"
        visit.page.click("button[data-view=table]")
        visit.page.reload()
        sync_api.expect(card).to_have_attribute("data-view", "table")
        assert visit.page.get_attribute("button[data-view=table]", "aria-pressed") == "true"


def test_the_rows_stay_below_the_pointer(visit: Visit) -> None:
    visit.page.locator("#boards tr").last.hover()
    silent = [board.model_copy(update={"health": "silent", "reason": "x"}) for board in visit.store.current.boards]
    visit.store.update(boards=[*silent[1:], visit.store.current.boards[0].model_copy(update={"health": "offline"})])
    visit.expect("boards", "silent")
    visit.page.wait_for_timeout(100)
    assert names(visit) == ["pi4-1", "pi5-1", "jetson-1"]
    visit.page.mouse.move(5, 5)
    sync_api.expect(visit.page.locator("#boards tr").first).to_contain_text("jetson-1")


def test_the_rows_stay_while_the_keyboard_moves_between_them(visit: Visit) -> None:
    """A row that moves takes the focus with it: Tab would then skip boards, and a screen reader repeats them."""
    visit.page.focus("#boards tr[data-agent=pi4-1] .open")
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.closest('tr').dataset.agent") == "pi5-1"
    lost = [board.model_copy(update={"health": "offline"}) for board in visit.store.current.boards[:1]]
    visit.store.update(boards=[*lost, *visit.store.current.boards[1:]])
    visit.expect("boards", "offline")
    visit.page.wait_for_timeout(100)
    assert names(visit) == ["pi4-1", "pi5-1", "jetson-1"]
    visit.page.focus("#board-filter")
    sync_api.expect(visit.page.locator("#boards tr").first).to_contain_text("jetson-1")


def test_the_drawer_shows_one_board(visit: Visit) -> None:
    visit.page.click("#boards tr[data-agent=pi5-1] .open")
    visit.expect("drawer", "81.2 °C")
    state = re.compile(r"hot since [\d :-]+: 81\.2 °C, slows down at 85 °C \(raspberry-pi-5\)")
    sync_api.expect(visit.page.locator("#drawer-state")).to_have_text(state)
    visit.expect("drawer", "The digest of chunk 3")
    assert visit.page.locator("#drawer-replies tr").count() >= 10
    for degrees in (70.0, 75.0, 71.0):
        changed = [board.model_copy(update={"temperature": degrees}) for board in visit.store.current.boards]
        visit.store.update(boards=changed)
        visit.expect("drawer", f"{degrees} °C")
    visit.page.wait_for_selector("#drawer-temperature canvas")
    assert "between 70 °C and 81 °C" in visit.page.get_attribute("#drawer-temperature [role=img]", "aria-label")


def test_the_drawer_works_with_the_keyboard(browser: Any) -> None:
    with visit_page(browser, running(40)) as visit:
        visit.page.focus("#boards tr[data-agent=pi5-1] .open")
        visit.page.keyboard.press("Enter")
        sync_api.expect(visit.test("drawer")).to_be_visible()
        visit.page.keyboard.press("Escape")
        sync_api.expect(visit.test("drawer")).to_be_hidden()
        focused = "document.activeElement.closest('tr').dataset.agent"
        assert visit.page.evaluate(focused) == "pi5-1"
        visit.store.update(boards=visit.store.current.boards[::-1], round=30)
        visit.expect("round", "30")
        assert visit.page.evaluate(focused) == "pi5-1"


# Whether the middle of the focused element is that element, and not a heading above it.
UNCOVERED = """() => {
  const { left, top, width, height } = document.activeElement.getBoundingClientRect();
  return document.activeElement.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}"""


def test_a_heading_that_stays_covers_no_focused_board(browser: Any) -> None:
    with visit_page(browser, running(40)) as visit:
        visit.page.click("button[data-view=table]")
        visit.page.locator("#boards .open").last.focus()
        for _ in range(39):
            visit.page.keyboard.press("Shift+Tab")
            assert visit.page.evaluate(UNCOVERED), visit.page.evaluate("document.activeElement.textContent")


def test_everything_can_be_reached_with_the_keyboard(visit: Visit) -> None:
    """Tab visits the skip link first, and then every control and every box that scrolls."""
    reached = []
    for _ in range(60):
        visit.page.keyboard.press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert reached[0] == "skip"
    wanted = {
        "curve-x",
        "curve-zero",
        "timeline-order",
        "timeline-in",
        "quilt-view",
        "board-filter",
        "board-sort",
        "open",
    }
    assert wanted <= set(reached)


# A run that waits


def test_a_waiting_run_lists_the_commands(browser: Any) -> None:
    with visit_page(browser, waiting(), permissions=["clipboard-read", "clipboard-write"]) as visit:
        items = visit.test("missing").locator("li")
        assert items.count() == 4
        sync_api.expect(items.first).to_contain_text(
            "fedquilt agent --broker mqtt://workstation.local:1883 --id jetson-2"
        )
        items.first.get_by_role("button").click()
        sync_api.expect(items.first.get_by_role("button")).to_have_text("Copied")
        assert visit.page.evaluate("navigator.clipboard.readText()").endswith("--id jetson-2 --clients 6-7")
        here = [board.model_copy(update={"health": "online", "online": True}) for board in visit.store.current.boards]
        visit.store.update(boards=here, awaited=[], phase="training", round=1)
        sync_api.expect(visit.test("missing")).to_have_count(0)


@pytest.mark.parametrize(("works", "words"), [("true", "Copied"), ("false", "Selected: press Ctrl+C")])
def test_a_command_can_be_copied_without_the_clipboard(browser: Any, works: str, words: str) -> None:
    with visit_page(browser, waiting()) as visit:
        visit.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
        visit.page.evaluate(f"() => {{ document.execCommand = () => {works}; }}")
        visit.page.click(".copy >> nth=0")
        sync_api.expect(visit.page.locator(".copy >> nth=0")).to_have_text(words)
        assert visit.page.evaluate("String(getSelection())").startswith("fedquilt agent")


def test_a_coordinator_that_starts_asks_for_nothing_yet(browser: Any) -> None:
    hint = "Start an agent with fedquilt agent."
    with visit_page(browser, Snapshot()) as visit:
        sync_api.expect(visit.page.locator("h1")).to_have_text("The coordinator is starting")
        assert visit.test("broker").count() == 0
        assert not visit.page.get_by_text(hint).is_visible()
        visit.store.update(name="digits", broker_connected=True)
        visit.expect("broker", "connected")
        sync_api.expect(visit.page.locator("h1")).to_have_text("digits")
        sync_api.expect(visit.page.get_by_text(hint)).to_be_visible()
