"""The page of a report in a real browser: light, dark, on a phone, in print, without scripts and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded_runs import learning, write_boards, write_run
from tests.support.visit import HOSTILE, sync_api

from fedquilt_server.report.make_report import ReportSettings, make_report

BOARDS = {HOSTILE: [0], "weak-2": [1, 2], "weak-10": [3]}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two algorithms and two seeds, and of a run that failed."""
    folder = tmp_path_factory.mktemp("runs")
    for number, algorithm in enumerate(("fedavg", "fedprox")):
        for seed in (1, 2):
            run = write_run(folder / f"{algorithm}-{seed}", learning(12, 0.9, 3 + number, seed), algorithm=algorithm,
                            seed=seed)  # fmt: skip
            write_boards(run, BOARDS, 12)
    write_run(folder / "failed", [0.1], status="failed", reason=HOSTILE, exit_code=7, seed=3)
    return make_report([folder], ReportSettings(tmp_path_factory.mktemp("report"))).files[0]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_without_errors_and_fits_its_width(
    scheme: str, width: int, browser: Any, page_file: Path
) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    errors, requests = list[str](), list[str]()
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    ground = "rgb(15, 17, 24)" if scheme == "dark" else "rgb(244, 245, 249)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    page.close()


def test_curves_have_the_colours_of_the_theme(browser: Any, page_file: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(page_file.as_uri())
    strokes = page.evaluate("""() => [...document.querySelectorAll("#chart-curve-rounds path")]
      .map((path) => getComputedStyle(path).stroke)""")
    assert {"rgb(127, 176, 255)", "rgb(240, 160, 90)"} <= set(strokes)
    page.close()


def test_the_page_is_readable_without_scripts_and_in_print(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    for name in ("not-averaged", "scores", "curves", "clients", "boards", "coverage", "runs", "settings"):
        assert page.locator(f"#h-{name}").is_visible(), name
    assert page.locator("figure svg").count() == 10
    sync_api.expect(page.locator("#not-averaged")).to_contain_text(f"{HOSTILE} (exit code 7)")
    context.close()


def test_tables_that_are_too_wide_scroll_by_keyboard(browser: Any, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(page_file.as_uri())
    region = page.locator("#costs .scroll")
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('#costs .scroll').scrollLeft > 0")
    page.close()
