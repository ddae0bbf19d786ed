"""How many entries of the journal agents cause, and how much of them the coordinator holds."""

from __future__ import annotations

import pytest

from fedquilt_server.coordinator import rate_limit
from fedquilt_server.coordinator.rate_limit import RateLimit


def test_names_without_end_cause_no_more_than_one_agent_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new name would begin at 0, and need memory."""
    monkeypatch.setattr(rate_limit, "MOST_NAMES", 3)
    monkeypatch.setattr(rate_limit, "REFUSALS_PER_EXCHANGE", 5)
    monkeypatch.setattr(rate_limit, "JOINS_PER_EXCHANGE", 5)
    limit = RateLimit(lambda: 0.0)
    names = [f"name-{number}" for number in range(100)]
    for count in (limit.count_refusal, limit.count_join):
        assert sum(count(name) for name in names) == 3 + 5
        assert [count("name-0") for _ in range(5)] == [True] * 4 + [False]
    for name in names:
        limit.note_failure(name, 0, "out of memory")
    assert len(limit._failures) == 3
