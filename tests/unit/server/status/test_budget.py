"""A budget: what the rounds spend of each limit, when one is used up, and how long the rest lasts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedquilt_common.experiment.sections import Budget
from fedquilt_server.status.budget import BudgetMeter, BudgetUse
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.scores import seconds_left
from fedquilt_server.status.snapshot import Snapshot

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
ROUND = RoundResult.model_validate({**ZEROS, "bytes_down": 600, "bytes_up": 400, "joules": 250.0, "seconds": 900.0})


def spend(rounds: int, **limits: Any) -> BudgetMeter:
    meter = BudgetMeter(Budget(**limits))
    for round in range(1, rounds + 1):
        meter.take(ROUND.model_copy(update={"round": round}))
    return meter


@pytest.mark.parametrize(
    ("limits", "rounds", "words"),
    [
        ({"bytes": "3kB"}, 3, "the budget of 3.0 kB is used up after round 3"),
        ({"joules": 501.0}, 3, "the budget of 501 J is used up after round 3"),
        ({"hours": 0.5}, 2, "the budget of 30 min 00 s is used up after round 2"),
        ({"bytes": 10**6, "hours": 0.2}, 1, "the budget of 12 min 00 s is used up after round 1"),
    ],
)
def test_a_budget_is_used_up_after_the_round_that_reaches_a_limit(
    limits: dict[str, Any], rounds: int, words: str
) -> None:
    assert spend(rounds - 1, **limits).reason == ""
    assert spend(rounds, **limits).reason == words
    assert spend(rounds + 2, **limits).reason == words


def test_what_is_used_of_each_limit() -> None:
    assert spend(3).uses == []
    assert [use.text for use in spend(3, bytes="1MB", joules=1e4, hours=2.0).uses] == [
        "3.0 kB of 1.0 MB",
        "750 J of 10.0 kJ",
        "45 min 00 s of 2 h 00 min",
    ]


def test_hours_are_those_in_which_the_coordinator_ran() -> None:
    meter = BudgetMeter(Budget(hours=0.2))
    meter.take(ROUND.model_copy(update={"away_seconds": 540.0}))
    assert meter.reason == ""
    assert meter.uses[0].used == pytest.approx(0.1)


def test_boards_that_report_no_energy_use_none() -> None:
    meter = BudgetMeter(Budget(joules=1.0))
    meter.take(ROUND.model_copy(update={"joules": None}))
    assert (meter.reason, meter.uses[0].used) == ("", 0.0)


@pytest.mark.parametrize(
    "limits", [{"bytes": 0}, {"bytes": True}, {"joules": -1.0}, {"hours": float("nan")}, {"days": 1}]
)
def test_an_impossible_limit_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Budget(**limits)


@pytest.mark.parametrize(("used", "seconds"), [(0, 900.0 * 98), (1_000, 900.0 * 18), (9_500, 900.0), (10_000, None)])
def test_the_time_left_ends_with_the_last_round_or_the_budget(used: int, seconds: float | None) -> None:
    """Two of 100 rounds are done, of 900 s each."""
    use = BudgetUse(quantity="bytes", used=used, limit=10_000)
    history = [ROUND, ROUND.model_copy(update={"round": 2})]
    assert seconds_left(Snapshot(phase="training", rounds=100, budget=[use], history=history), 900.0) == seconds
