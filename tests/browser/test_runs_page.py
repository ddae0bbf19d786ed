"""The page over a folder of runs in a real browser: list, search, compare, each run, and what goes wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_access import check_both_themes
from tests.support.example_library import example_library, rounds, write_example
from tests.support.recorded_runs import write_run
from tests.support.visit import HOSTILE, PATIENCE_MS, sync_api, unexpected

from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.web.library_app import create_library_app
from fedquilt_server.web.server import WebServer

WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
PAUSE_MS = 3000
"""Between two looks of the list at its folder."""
PAIR = "compare?run=digits-algorithms~fedavg-seed=1&run=digits-algorithms~fedrolex-seed=1"


def serve(folder: Path, port: int = 0) -> WebServer:
    return WebServer(lambda names: create_library_app(RunLibrary(folder), names), port=port)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("library"))
        with example_library(Path("runs")), serve(Path("runs")) as running:
            write_run(Path("runs/hostile"), name=HOSTILE, algorithm=HOSTILE, status="stopped", reason=HOSTILE)
            yield running


@contextmanager
def open_page(
    browser: Any, server: WebServer, path: str = "", *, missing: int = 0, has_clock: bool = False, **context: Any
) -> Iterator[Any]:
    """Open a page; at the end, the console must be empty, but for the addresses that the test knows to be missing.

    With ``has_clock``, the test can turn the page's clock forward.
    """
    errors: list[str] = []
    usual = {"viewport": WIDE, "locale": "en-GB", "timezone_id": "UTC"}
    page = browser.new_page(**{**usual, **context})
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    if has_clock:
        page.clock.install()
    page.goto(server.url + path)
    yield page
    hacked = context.get("java_script_enabled", True) and page.evaluate("window.hacked !== undefined")
    page.close()
    assert not hacked
    assert [error for error in unexpected(errors) if "404 (Not Found)" not in error] == []
    assert len([error for error in errors if "404" in error]) == missing


def shown(page: Any) -> list[str]:
    return [str(text) for text in page.locator("#rows th a").all_inner_texts()]


def expect_rows(page: Any, count: int) -> None:
    sync_api.expect(page.locator("#rows tr")).to_have_count(count)


# --- the list ------------------------------------------------------------------------------------------------


def test_the_list_is_searched_while_one_types(browser: Any, server: WebServer) -> None:
    with open_page(browser, server) as page:
        expect_rows(page, 12)
        assert shown(page)[:3] == ["har-phones", "digits-lr", "night"]
        page.fill("[name=q]", "fedprox")
        expect_rows(page, 2)
        sync_api.expect(page.get_by_test_id("matching")).to_have_text("2 runs")
        assert page.url.endswith("?q=fedprox")
        page.fill("[name=q]", "nothing of this kind")
        sync_api.expect(page.get_by_test_id("nothing")).to_contain_text("No run matches")
        page.fill("[name=q]", "")
        page.select_option("[name=status]", "failed")
        expect_rows(page, 1)
        sync_api.expect(page.locator("#rows")).to_contain_text("the loss is nan since round 3")


def test_headings_sort(browser: Any, server: WebServer) -> None:
    with open_page(browser, server) as page:
        page.click("thead a:has-text('Best')")
        page.wait_for_url("**/?sort=-best")
        assert shown(page)[0] == "digits-algorithms/fedprox-seed=1"
        assert page.get_by_role("link", name="digits-algorithms/fedprox-seed=1", exact=True).count() == 1
        sync_api.expect(page.locator("[aria-sort=descending]")).to_have_text("Best")


def test_the_list_follows_the_folder(browser: Any, tmp_path: Path) -> None:
    with serve(tmp_path) as server, open_page(browser, server, has_clock=True) as page:
        sync_api.expect(page.get_by_test_id("nothing")).to_contain_text("There is no run in this folder yet")
        write_run(tmp_path / "first", [0.5])
        page.clock.fast_forward(PAUSE_MS)
        expect_rows(page, 1)
        sync_api.expect(page.locator("#rows")).to_contain_text("50.00 %")
        page.locator("#rows input").focus()
        write_run(tmp_path / "first", [0.5, 0.75])
        page.clock.fast_forward(PAUSE_MS)
        sync_api.expect(page.locator("#rows")).to_contain_text("75.00 %")
        assert page.evaluate("document.activeElement.name") == "run", "the focus stays"
        server.stop()
        page.clock.fast_forward(PAUSE_MS)
        sync_api.expect(page.get_by_test_id("banner")).to_contain_text("Connection to the server lost")
        sync_api.expect(page.get_by_test_id("live")).to_have_text("lost")


def test_runs_are_chosen_and_compared_with_the_keyboard(browser: Any, server: WebServer) -> None:
    with open_page(browser, server, "?q=seed=1&sort=name") as page:
        button = page.get_by_test_id("compare")
        sync_api.expect(button).to_be_disabled()
        page.locator("#rows input >> nth=0").focus()
        page.keyboard.press("Space")
        page.fill("[name=q]", "seed=2")
        sync_api.expect(page.locator("#rows")).to_contain_text("fedrolex-seed=2")
        page.locator("#rows input >> nth=2").focus()
        page.keyboard.press("Space")
        sync_api.expect(button).to_have_text("Compare 2")
        button.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?*")
        assert page.get_by_test_id("compared").locator("a").all_inner_texts() == ["fedavg-seed=1", "fedrolex-seed=2"]
        page.click("text=All runs")
        sync_api.expect(page.get_by_test_id("compare")).to_have_text("Compare 2")
        page.click("#clear")
        sync_api.expect(page.get_by_test_id("compare")).to_be_disabled()


def test_the_list_works_without_javascript(browser: Any, server: WebServer) -> None:
    with open_page(browser, server, missing=1, java_script_enabled=False) as page:
        page.fill("[name=q]", "seed=1")
        page.click("#filter button")
        expect_rows(page, 3)
        for place in (0, 2):
            page.check(f"#rows input >> nth={place}")
        page.click("#compare")
        sync_api.expect(page.get_by_test_id("results")).to_contain_text("best accuracy [%]")
        page.goto(server.url)
        page.click("#compare")
        sync_api.expect(page.locator("main")).to_contain_text("choose 2 to 8 runs")


# --- comparisons and runs ------------------------------------------------------------------------------------


def test_a_comparison_has_curves_scores_and_settings(browser: Any, server: WebServer) -> None:
    with open_page(browser, server, PAIR) as page:
        for chart in ("value", "loss"):
            page.wait_for_selector(f"#{chart}-chart[data-curves='2'] canvas")
        assert "fedavg-seed=1" in (page.get_by_test_id("value-chart").get_attribute("aria-label") or "")
        sync_api.expect(page.get_by_test_id("value-chart").locator(".u-legend")).to_contain_text("latest")
        for axis in ("bytes", "seconds", "round"):
            page.select_option("#curve-x", axis)
            page.wait_for_selector("#value-chart[data-curves='2'] canvas")
        sync_api.expect(page.get_by_test_id("differences")).to_contain_text("algorithm.name")


def test_runs_without_curves_and_a_run_that_is_not_there(browser: Any, server: WebServer) -> None:
    with open_page(browser, server, "compare?run=power-cut&run=hostile") as page:
        sync_api.expect(page.locator("#loss-chart")).to_have_text("No measurements yet.")
        sync_api.expect(page.get_by_test_id("notes")).to_contain_text("is damaged")
    with open_page(browser, server, "runs/nothing/", missing=1) as page:
        sync_api.expect(page.locator("main")).to_contain_text("there is no such run")
        page.click("text=All runs")
        expect_rows(page, 12)


@pytest.mark.parametrize(
    ("run", "phase", "words"),
    [("digits-algorithms~fedavg-seed=1", "finished", ""), ("digits-lr", "failed", "The run failed: the loss is nan"),
     ("night", "interrupted", "The run was interrupted: "), ("power-cut", "damaged", "is damaged"),
     ("har-phones", "training", "")],
)  # fmt: skip
def test_a_run_has_its_page(run: str, phase: str, words: str, browser: Any, server: WebServer) -> None:
    with open_page(browser, server, f"runs/{run}/") as page:
        sync_api.expect(page.get_by_test_id("phase")).to_have_text(phase)
        sync_api.expect(page.get_by_test_id("live")).to_have_text("from files" if phase == "training" else "ended")
        assert page.get_by_test_id("replies").count() == (phase == "training")  # its files do not tell of the others
        if words:
            sync_api.expect(page.get_by_test_id("problem")).to_contain_text(words)
        if phase != "damaged":
            page.wait_for_selector("#value-chart canvas")
        page.wait_for_selector("#timeline-text:not(:empty)")
        sync_api.expect(page.get_by_test_id("quilt")).to_be_visible()
        assert page.locator("#boards tr").count() >= 4
        page.click("text=All runs")
        expect_rows(page, 12)


def test_a_page_follows_the_files_of_its_run(browser: Any, tmp_path: Path) -> None:
    folder = write_example(tmp_path / "digits", 1, 2, rounds(3, 0.9, 4), status="running", exit_code=None)
    with serve(tmp_path) as server, open_page(browser, server, "runs/digits/") as page:
        page.wait_for_selector("#value-chart[data-points='3'] canvas")
        write_run(folder, rounds=rounds(5, 0.9, 4))
        page.wait_for_selector("#value-chart[data-points='5'] canvas")
        sync_api.expect(page.get_by_test_id("phase")).to_have_text("finished")


# --- looks ---------------------------------------------------------------------------------------------------

PATHS = {"runs": "", "found": "?q=seed&status=finished&sort=-best", "none": "?q=zzz", "compare": PAIR,
         "failed": "runs/digits-lr/", "missing": "runs/nothing/"}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_and_nothing_is_too_wide(path: str, browser: Any, server: WebServer) -> None:
    def check() -> None:
        if path in ("compare", "failed"):
            page.wait_for_selector("#value-chart canvas")
        assert page.evaluate(too_wide) == 0
        check_both_themes(page)

    too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with open_page(browser, server, PATHS[path], missing=2 * (path == "missing")) as page:
        check()
        page.set_viewport_size(PHONE)
        page.reload()
        check()


def test_pictures_of_the_documentation(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If FEDQUILT_SCREENSHOTS names a folder, write the pictures there."""
    folder = os.environ.get("FEDQUILT_SCREENSHOTS")
    monkeypatch.chdir(tmp_path)
    with example_library(Path("runs")), serve(Path("runs")) as server:
        with open_page(browser, server, viewport={"width": 1440, "height": 600}) as page:
            for seed in (1, 2):
                page.check(f"[value='digits-algorithms~fedrolex-seed={seed}']")
            take_pictures(page, folder, "runs-page")
        with open_page(browser, server, PAIR) as page:
            page.wait_for_selector("#loss-chart canvas")
            take_pictures(page, folder, "runs-comparison")


def take_pictures(page: Any, folder: str | None, name: str) -> None:
    assert page.locator("main .card").count() >= 2
    for theme, end in (("light", ""), ("dark", "-dark")) if folder else ():
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(500)
        page.screenshot(path=Path(folder or "").absolute() / f"{name}{end}.png", full_page=True, animations="disabled")
