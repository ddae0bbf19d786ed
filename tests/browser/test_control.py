"""Whoever has the page's token controls the run on the page, with and without JavaScript; others see no forms."""

from __future__ import annotations

import queue
from contextlib import nullcontext
from typing import Any

import pytest
from tests.browser.test_access import violations
from tests.support.example_runs import running
from tests.support.visit import Visit, unexpected

from fedquilt_server.status.control import ControlRequest
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.access import Access
from fedquilt_server.web.server import PageServer

TOKEN = "a-token-of-some-length"  # noqa: S105


@pytest.mark.parametrize("script", [True, False])
def test_the_forms_need_the_token_and_reach_the_coordinator(browser: Any, script: bool) -> None:
    requests: queue.SimpleQueue[ControlRequest] = queue.SimpleQueue()
    store = StatusStore(running())
    with PageServer(store, access=Access(TOKEN), request_control=requests.put) as server:
        visit = Visit(browser, server, store, java_script_enabled=script)
        page = visit.page
        assert visit.test("control").count() == 0
        page.goto(f"{server.url}?token={TOKEN}")
        assert "token" not in page.url
        with nullcontext() if script else page.expect_navigation():
            page.get_by_role("button", name="Pause").click()
        assert requests.get(timeout=60) == ControlRequest("pause")
        board = store.current.boards[0].agent
        page.get_by_label("Board", exact=True).fill(board)
        with nullcontext() if script else page.expect_navigation():
            page.get_by_role("button", name="Drop").click()
        assert requests.get(timeout=60) == ControlRequest("drop", board)
        if script:
            visit.expect("control-answer", "The board is dropped.")
            page.get_by_label("Board", exact=True).fill("nobody")
            page.get_by_role("button", name="Drop").click()
            visit.expect("control-answer", "there is no board 'nobody'")
            assert violations(visit) == []
            store.update(phase="finished")
            page.get_by_role("button", name="Continue").click()
            visit.expect("control-answer", "the run is finished: it takes no requests")
        else:
            page.get_by_label("Board", exact=True).fill("nobody")
            with page.expect_navigation():
                page.get_by_role("button", name="Drop").click()
            assert "there is no board 'nobody'" in page.get_by_role("main").inner_text()
            page.get_by_role("link", name="Back to the run").click()
            assert visit.test("control").is_visible()
        store.update(phase="finished")
        page.reload()
        assert visit.test("control").count() == 0
        assert [error for error in unexpected(visit.errors) if "status of 4" not in error] == []
        page.close()
