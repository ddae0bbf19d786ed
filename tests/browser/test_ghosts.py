"""Curves of other runs behind those of a run: chosen, drawn on each axis, kept through updates and reloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_access import violations
from tests.support.example_runs import row, running
from tests.support.recorded_runs import write_run
from tests.support.visit import Visit, sync_api, visit_page

BEST, SECOND = "digits-fedavg-of-last-week", "digits-fedprox"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    history = [row(number) for number in range(1, 41)]
    write_run(folder / "now", rounds=history[:20], settings={"rounds": 40}, status="running")
    better = [one.model_copy(update={"accuracy": (one.accuracy or 0) + 0.04}) for one in history]
    longer = [row(number) for number in range(1, 61)]
    write_run(folder / BEST, rounds=better)
    write_run(folder / SECOND, rounds=longer, algorithm="fedprox", status="failed")
    write_run(folder / "fashion", rounds=better, dataset="fashion")
    return folder


@pytest.fixture
def compared(browser: Any, runs: Path) -> Iterator[Visit]:
    with visit_page(browser, running(), folder=runs / "now") as visit:
        visit.page.wait_for_selector(f"#charts[data-ghosts='{BEST}']")
        yield visit


def legend(visit: Visit, chart: str) -> Any:
    return visit.test(f"{chart}-chart").locator(".u-legend")


def test_the_best_run_is_drawn_behind_the_run(compared: Visit) -> None:
    assert compared.page.locator("#ghost-best option:checked").inner_text() == f"best of 2: {BEST} 99.93 %"
    assert compared.page.locator("#ghost-second option").all_inner_texts() == [
        "second run: none",
        f"{SECOND} 95.97 %, failed",
    ]
    sync_api.expect(legend(compared, "value")).to_contain_text("Best: digits-fedavg-o…")
    sync_api.expect(legend(compared, "value")).to_contain_text("99.93 %")
    sync_api.expect(legend(compared, "loss")).to_contain_text("Best:")
    sync_api.expect(legend(compared, "traffic")).not_to_contain_text("Best:")
    assert "in round 40" in (compared.test("value-chart").get_attribute("aria-label") or "")
    compared.wait_points("value-chart", 20)
    compared.page.locator("#ghost-details summary").click()
    rows = compared.test("ghost-rows").locator("tr")
    sync_api.expect(rows).to_have_count(2)
    texts = rows.all_inner_texts()
    assert [text.split("\t")[:2] for text in texts] == [["this run", "20"], [BEST, "40"]]
    for theme in ("light", "dark"):
        compared.page.emulate_media(color_scheme=theme)
        assert violations(compared) == []


def test_other_runs_have_the_names_of_their_folders(browser: Any, tmp_path: Path) -> None:
    name = "it's <b>best"
    history = [row(number) for number in range(1, 41)]
    write_run(tmp_path / "now", rounds=history[:20], status="running")
    write_run(tmp_path / name, rounds=history)
    with visit_page(browser, running(), folder=tmp_path / "now") as visit:
        sync_api.expect(visit.page.locator("#ghost-best option:checked")).to_contain_text(f"best of 1: {name} 95.93 %")
        sync_api.expect(legend(visit, "value")).to_contain_text(f"Best: {name}")
        visit.page.locator("#ghost-details summary").click()
        sync_api.expect(visit.test("ghost-rows").locator("th")).to_have_text(["this run", name])


def test_a_second_run_stays_through_updates_and_reloads(compared: Visit) -> None:
    compared.page.select_option("#ghost-second", SECOND)
    both = f"#charts[data-ghosts='{BEST} {SECOND}']"
    compared.page.wait_for_selector(both)
    compared.store.update(history=[*compared.store.current.history, row(21)])
    compared.wait_points("value-chart", 21)
    sync_api.expect(legend(compared, "value")).to_contain_text("Second: digits-fedprox")
    for axis in ("bytes", "seconds", "round"):
        compared.page.select_option("#curve-x", axis)
        sync_api.expect(legend(compared, "value")).to_contain_text("Second: digits-fedprox")
        compared.wait_points("value-chart", 21)
    compared.page.reload()
    compared.page.wait_for_selector(both)
    compared.page.select_option("#ghost-best", "")
    compared.page.wait_for_selector(f"#charts[data-ghosts='{SECOND}']")
    compared.page.reload()
    compared.page.wait_for_selector(f"#charts[data-ghosts='{SECOND}']")


def test_the_legend_shows_all_runs_under_the_pointer(compared: Visit) -> None:
    compared.page.locator("#value-chart").scroll_into_view_if_needed()
    box = compared.page.locator("#value-chart .u-over").bounding_box()
    compared.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)  # round 11 of 40
    sync_api.expect(legend(compared, "value")).to_contain_text(f"{100 * (row(11).accuracy or 0):.2f} %")
    sync_api.expect(legend(compared, "value")).to_contain_text(f"{100 * (row(11).accuracy or 0) + 4:.2f} %")
    compared.page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20)  # the run has not come so far
    sync_api.expect(legend(compared, "value").locator("tr").nth(1)).to_contain_text("–")  # noqa: RUF001


def test_a_run_alone_has_nothing_to_compare(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "now", (0.5,))
    with visit_page(browser, running(), folder=tmp_path / "now") as visit:
        sync_api.expect(visit.test("ghost-best")).to_contain_text("no comparable run")
        assert visit.test("ghost-best").is_disabled()
        assert visit.test("ghost-second").is_disabled()
        visit.wait_points("value-chart", 20)
        assert violations(visit) == []


def test_the_ghosts_move_nothing(compared: Visit) -> None:
    places = "() => [...document.querySelectorAll('main > *')].map((one) => one.getBoundingClientRect().top)"
    held: list[Any] = []
    compared.page.route("**/api/v1/runs", lambda route: held.append(route))
    for width in (390, 1440):
        compared.page.set_viewport_size({"width": width, "height": 900})
        compared.page.reload()
        compared.wait_points("time-chart", 20)
        compared.page.wait_for_selector("#timeline-text:not(:empty)")
        sync_api.expect(compared.test("ghost-best")).to_contain_text("looking for runs")
        while not held:
            compared.page.wait_for_timeout(20)
        before = compared.page.evaluate(places)
        held.pop().continue_()
        compared.page.wait_for_selector(f"#charts[data-ghosts='{BEST}']")
        assert compared.page.evaluate(places) == before


def test_a_page_that_opens_before_its_run_begins_finds_the_others_later(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "before")
    with visit_page(browser, running(), folder=tmp_path / "now") as visit:
        visit.wait_points("value-chart", 20)
        sync_api.expect(visit.test("ghost-best")).to_contain_text("looking for runs")
        write_run(tmp_path / "now", ())
        sync_api.expect(visit.test("ghost-best")).to_contain_text("best of 1: before")
