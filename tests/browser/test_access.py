"""The page is accessible: axe-core finds nothing in any state, it speaks, and it works without JavaScript."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.example_runs import ended, row, running, waiting
from tests.support.visit import Visit, sync_api, visit_page

from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.web import server as page_server

VENDOR = Path(__file__).parent / "vendor"
AXE = VENDOR / "axe-core" / "axe.min.js"
RUN_AXE = """async (rules) => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
  const describe = (id) => (node) => `${id}: ${node.html.slice(0, 200)} ${node.failureSummary}`;
  return violations.flatMap(({ id, nodes }) => nodes.map(describe(id)));
}"""
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""The rules of axe whose findings depend on the theme: it sets nothing but custom properties of colours."""
STYLES = Path(page_server.__file__).parent / "static"

STATES: dict[str, Callable[[], Snapshot]] = {
    "running": lambda: running(14),
    "waiting": waiting,
    "failed": lambda: ended("failed", "the loss is nan since round 4"),
    "stopped": lambda: ended("stopped", "stopped by hand"),
    "finished": lambda: ended("finished"),
    "broker lost": lambda: running(broker_connected=False, warning="The loss is nan since round 3."),
    "empty": Snapshot,
}


def find_violations(page: Any, rules: list[str] | None = None) -> list[str]:
    """Return what axe finds on a page, with these rules or all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = page.evaluate(RUN_AXE, rules)
    return found


def violations(visit: Visit) -> list[str]:
    return find_violations(visit.page)


def check_both_themes(page: Any) -> None:
    for theme, rules in (("dark", COLOUR_RULES), ("light", None)):
        page.emulate_media(color_scheme=theme)
        assert find_violations(page, rules) == [], theme


@pytest.mark.parametrize("style", ["page.css", "library.css"])
def test_the_dark_theme_sets_nothing_but_custom_properties(style: str) -> None:
    blocks = re.findall(r"@media \(prefers-color-scheme: dark\) \{\n(.+?)\n\}", (STYLES / style).read_text(), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert lines.pop(0) == ":root {"
    assert lines.pop() == "}"
    assert lines
    assert all(re.fullmatch(r"--[\w-]+: (#\w+|none);", line) for line in lines)


@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser: Any, state: str) -> None:
    with visit_page(browser, STATES[state]()) as visit:
        visit.page.evaluate("document.querySelectorAll('details:not([hidden])').forEach((one) => { one.open = true; })")
        check_both_themes(visit.page)


def test_axe_finds_nothing_in_the_table_the_groups_and_the_drawer(browser: Any) -> None:
    with visit_page(browser, running(33)) as visit:
        visit.page.check("#board-group")
        check_both_themes(visit.page)
        visit.page.click("button[data-view=table]")
        check_both_themes(visit.page)
        visit.page.click("#boards .open >> nth=0")
        sync_api.expect(visit.test("drawer")).to_be_visible()
        check_both_themes(visit.page)


def test_axe_finds_nothing_on_a_phone(browser: Any) -> None:
    with visit_page(browser, running(), viewport={"width": 390, "height": 844}) as visit:
        visit.page.evaluate(
            "document.getElementById('banner').textContent = 'x'; document.getElementById('banner').hidden = false"
        )
        assert violations(visit) == []


def test_axe_notices_a_mistake(visit: Visit) -> None:
    visit.page.evaluate("document.querySelector('img').removeAttribute('alt')")
    assert any("image-alt" in one for one in violations(visit))


def test_round_and_phase_are_announced(visit: Visit) -> None:
    visit.expect("announcer", "")
    visit.store.update(round=22, phase="evaluating", history=[*visit.store.current.history, row(21)])
    visit.expect("announcer", "Round 22, evaluating. warning: pi4-1 is offline for 6 min")


def test_the_page_works_without_javascript(browser: Any) -> None:
    with visit_page(browser, running(14), java_script_enabled=False) as visit:
        text = visit.page.inner_text("body")
        assert "JavaScript is off" in text
        assert all(words in text for words in ("Round 21 of 40", "pi5-1", "hot", "The digest of chunk 3", "92.8 %"))
        assert not visit.page.locator("#board-filter").is_visible()
        visit.page.locator("#timeline-details summary").click()
        assert visit.test("timeline-rows").locator("tr").count() == 28
        visit.page.locator("#quilt-details summary").click()
        assert visit.page.locator("#quilt-rows tr:visible").count() == 6


def test_the_vendored_files_are_what_the_list_says() -> None:
    listed = dict(re.findall(r"\| `(\S+)` \| `(\w{64})` \|", (VENDOR / "VENDORED.md").read_text()))
    found = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*") if path.is_file()}
    del found["VENDORED.md"]
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == listed
