"""The privacy of 40 clients in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.example_runs import running
from tests.support.visit import sync_api, visit_page

from fedquilt_server.status.results import PrivacySpent

REASON = "the privacy budget is used up: 19.99 of epsilon 20 is spent on these samples; choose a larger privacy.epsilon"


def spent(epsilon: float, declined: str = "") -> list[PrivacySpent]:
    rows = [PrivacySpent(client=client, epsilon=epsilon, budget=20.0, delta=1e-5) for client in range(40)]
    rows[3] = rows[3].model_copy(update={"declined": declined})
    return rows


def test_the_page_follows_what_is_spent_and_who_declines(browser: Any) -> None:
    with visit_page(browser, running(20)) as visit:
        sync_api.expect(visit.test("privacy")).to_have_count(0)
        visit.store.update(privacy=spent(4.25))
        visit.expect("privacy-text", "largest epsilon 4.25 of 20 at delta 1e-5, 40 of 40 clients have reported one")
        sync_api.expect(visit.test("privacy").locator("li")).to_have_count(40)
        visit.store.update(privacy=spent(19.99, REASON))
        visit.expect("epsilon", "19.99 of 20")
        sync_api.expect(visit.test("privacy").locator("li").first).to_contain_text(f"declined: {REASON}")


@pytest.mark.parametrize("width", [390, 1440])
def test_40_clients_fit_into_one_screen(width: int, browser: Any) -> None:
    viewport = {"width": width, "height": 844}
    with visit_page(browser, running(20, privacy=spent(19.99, REASON)), viewport=viewport) as visit:
        box = visit.page.locator("section:has([data-testid=privacy])").bounding_box()
        assert box["height"] < 480
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
