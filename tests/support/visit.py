"""A visit to the status page with a headless Chromium. It fails on any message in the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.server import PageServer

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: use make test")
PATIENCE_MS = 60_000
"""A loaded machine takes its time to draw the page."""
sync_api.expect.set_options(timeout=PATIENCE_MS)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--kiosk",
    # Replaces Playwright's own list, of which this keeps what a page can meet. The pop-ups would be made for each page.
    "--disable-features=AimEnabled,HttpsUpgrades,MediaRouter,OptimizationHints,PaintHolding,PreconnectToSearch,"
    "WebUIOmniboxAimPopup,WebUIOmniboxPopup",
]

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
"""A name that runs code wherever it is not escaped."""


class Visit:
    """One open page, with its store, console messages and requests."""

    def __init__(self, browser: Any, server: PageServer, store: StatusStore, **context: Any) -> None:
        self.server, self.store = server, store
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **context})
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(server.url)
        if context.get("java_script_enabled", True):
            self.page.wait_for_selector("#live:not([data-state=connecting])")

    def test(self, testid: str) -> Any:
        """Find an element by its test id."""
        return self.page.get_by_test_id(testid)

    def expect(self, testid: str, text: str) -> None:
        """Wait until the element contains the text."""
        sync_api.expect(self.test(testid)).to_contain_text(text)

    def wait_points(self, chart: str, count: int) -> None:
        """Wait until the curve has ``count`` points."""
        self.page.wait_for_selector(f"[data-testid={chart}][data-points='{count}'] canvas")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser, or skip the test if this machine has none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not on the PATH: sudo apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def visit_page(browser: Any, snapshot: Snapshot, folder: Path | None = None, **context: Any) -> Iterator[Visit]:
    """Serve a snapshot, of a run in ``folder``, and open its page. At the end, the console must be empty."""
    store = StatusStore(snapshot)
    with PageServer(store, folder=folder) as server:
        visit = Visit(browser, server, store, **context)
        yield visit
        visit.page.close()
    assert unexpected(visit.errors) == []


def unexpected(errors: list[str]) -> list[str]:
    """Leave out what the browser and htmx report when a connection is lost, as it is in a few tests."""
    return [error for error in errors if "ERR_" not in error and error != "[object Event]"]
