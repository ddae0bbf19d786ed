"""The health of a board: the worst problem wins, and its reason is for people."""

from __future__ import annotations

import pytest

from fedquilt_server.status.health import BoardFacts, judge_health
from fedquilt_server.status.snapshot import BoardStatus

NOW = 10_000.0
FINE = BoardStatus(agent="pi", interval=2.0, temperature=60.0, throttled=0x10000)


@pytest.mark.parametrize(
    ("changes", "facts", "health", "reason"),
    [
        ({}, BoardFacts(silence=4.9), "online", ""),
        ({}, BoardFacts(silence=5.0), "silent", "it promised a message every 2 s"),
        ({}, BoardFacts(silence=19.9, is_sending=True), "online", ""),
        ({}, BoardFacts(silence=20.0, is_sending=True), "silent", "every 2 s"),
        ({"interval": 30.0}, BoardFacts(silence=74.0), "online", ""),
        ({"interval": 30.0}, BoardFacts(silence=75.0), "silent", "every 30 s"),
        ({"online": False}, BoardFacts(silence=100.0), "offline", "lost its connection"),
        ({"online": False, "site": "hall"}, BoardFacts(is_cut_off=True), "unreachable", "behind the site hall"),
        ({"throttled": 0x1}, BoardFacts(), "throttled", "the voltage is too low now"),
        ({"temperature": 80.0}, BoardFacts(), "hot", "80 °C"),
        ({}, BoardFacts(is_late=True), "late", "after its exchange had closed"),
        ({"restarts": 2}, BoardFacts(restarts=2, restarted_at=NOW - 599), "restarted", "2 times in this run"),
        ({"restarts": 2}, BoardFacts(restarts=2, restarted_at=NOW - 600), "online", ""),
        ({}, BoardFacts(is_too_small=True, out_of_memory_at=NOW), "out of memory", "smaller sub-models"),
        ({"temperature": 90.0}, BoardFacts(is_too_small=True), "too small", "trains nothing"),
        ({"temperature": 90.0}, BoardFacts(out_of_memory_at=NOW), "out of memory", "smaller sub-models"),
    ],
)
def test_a_board_is_judged_by_its_worst_problem(
    changes: dict[str, object], facts: BoardFacts, health: str, reason: str
) -> None:
    found, why = judge_health(FINE.model_copy(update=changes), facts, NOW)
    assert found == health
    assert reason in why
    assert bool(why) == (health != "online")
