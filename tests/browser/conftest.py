"""One browser for all tests of a file. Its event loop must end before other tests start theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.example_runs import running
from tests.support.visit import Visit, open_browser, visit_page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as running_browser:
        yield running_browser


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """The page of a run with three boards."""
    with visit_page(browser, running()) as open_page:
        yield open_page
