"""Costs, scores and targets of the rounds of one run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recorded_runs import make_round, make_rounds

from fedquilt_common.learning_tasks.metrics import MAIN_METRICS, METRICS
from fedquilt_server.library.quantities import (
    QUANTITIES,
    SCORES,
    TargetReached,
    accumulate,
    best_value,
    find_impossible,
    last_value,
    late_value,
    pick_score,
    reach_target,
)
from fedquilt_server.library.scales import score_text
from fedquilt_server.status.units import DASH

ROUNDS = make_rounds([0.5, None, 0.8, 0.7])


def test_costs_add_up_round_by_round() -> None:
    assert accumulate(ROUNDS, "seconds") == [2.0, 4.0, 6.0, 8.0]
    assert accumulate(ROUNDS, "bytes") == [3000.0, 6000.0, 9000.0, 12000.0]


def test_a_cost_that_a_round_lacks_is_unknown_and_not_too_small() -> None:
    assert accumulate(ROUNDS, "joules") is None
    assert accumulate([make_round(1, 0.5, scores={"joules": 3.0}), make_round(2, 0.5)], "joules") is None
    assert accumulate([make_round(1, 0.5, scores={"joules": 3.0})], "joules") == [3.0]
    assert accumulate([], "seconds") is None


def test_last_and_best_skip_rounds_without_an_evaluation() -> None:
    assert (last_value(ROUNDS, "accuracy"), best_value(ROUNDS, "accuracy")) == (0.7, 0.8)
    assert (last_value(make_rounds([0.5, None]), "accuracy"), last_value(ROUNDS, "r2")) == (0.5, None)
    assert best_value([make_round(1, None, loss=2.0), make_round(2, None, loss=3.0)], "loss") == 2.0


def test_the_late_mean_is_over_the_last_ten_evaluated_rounds() -> None:
    assert late_value(ROUNDS, "accuracy") == pytest.approx(2 / 3)
    long = make_rounds([0.1, *[0.5, None] * 9, 0.8])
    assert late_value(long, "accuracy") == pytest.approx(0.53)
    assert late_value(long, "r2") is None


def test_the_costs_of_a_target_are_those_up_to_the_first_round_that_reaches_it() -> None:
    costs = {"seconds": 6.0, "bytes": 9000.0, "joules": None}
    assert reach_target(ROUNDS, "accuracy", 0.75) == TargetReached(3, costs)
    assert reach_target(ROUNDS, "accuracy", 0.5) == TargetReached(1, {"seconds": 2.0, "bytes": 3000.0, "joules": None})
    assert reach_target(ROUNDS, "accuracy", 0.81) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_target_never_costs_less(accuracies: list[float], a: float, b: float) -> None:
    rounds = make_rounds(accuracies)
    low, high = (reach_target(rounds, "accuracy", target) for target in sorted((a, b)))
    if high is not None:
        assert low is not None
        assert low.round <= high.round
        assert (low.costs["seconds"] or 0) <= (high.costs["seconds"] or 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1, 1e308])
def test_impossible_scores_are_named_and_not_used(value: float) -> None:
    rounds = [make_round(1, 0.5), make_round(2, value)]
    assert (last_value(rounds, "accuracy"), best_value(rounds, "accuracy")) == (None, 0.5)
    assert list(find_impossible(rounds)) == [f"accuracy is {value:g} in round 2: not used"]


def test_an_impossible_cost_makes_the_sum_unknown() -> None:
    rounds = [make_round(1, 0.5), make_round(2, 0.6, seconds=-5.0), make_round(3, 0.6, seconds=-1.0)]
    assert accumulate(rounds, "seconds") is None
    assert list(find_impossible(rounds)) == ["seconds is -5 in round 2, and 1 more: not used"]


def test_a_sum_with_an_impossible_part_is_not_used_even_if_it_is_possible_itself() -> None:
    rounds = [make_round(1, 0.5), make_round(2, 0.6, bytes_down=9000, bytes_up=-4)]
    assert accumulate(rounds, "bytes") is None
    assert list(find_impossible(rounds)) == ["bytes is -4 in round 2: not used"]


def test_runs_are_compared_by_a_score_that_all_have() -> None:
    classes, numbers = make_rounds([0.5]), [make_round(1, None, r2=0.5, loss=1.0)]
    assert pick_score([classes, classes]) == "accuracy"
    assert pick_score([numbers]) == "r2"
    assert pick_score([[make_round(1, 0.5, loss=1.0)], [make_round(1, None, loss=2.0)]]) == "loss"
    assert pick_score([[make_round(1, 0.5, loss=1.0)], numbers]) is None  # their losses have no scale in common
    assert pick_score([classes, []]) == "accuracy"
    assert pick_score([[make_round(1, None)]]) is None
    assert pick_score([]) is None


def test_each_quantity_is_defined() -> None:
    assert all(quantity.meaning and quantity.heading for quantity in QUANTITIES.values())


def test_every_metric_and_those_of_other_models_are_quantities() -> None:
    names = [quantity.name for quantity in SCORES]
    assert len(set(names)) == len(names)
    assert set(METRICS) <= set(names)
    assert {f"{prefix}_{metric.name}" for metric in MAIN_METRICS for prefix in ("global", "personal", "average")} <= {
        *names
    }
    assert (QUANTITIES["personal_r2"].heading, QUANTITIES["personal_r2"].unit) == ("personal R2 (P)", "number")
    assert (QUANTITIES["global_map50"].heading, QUANTITIES["global_map50"].unit) == ("global mAP-50 (G)", "share")


def test_less_is_better_for_an_error() -> None:
    rounds = [make_round(1, None, r2=0.1, scores={"mae": 3.0}), make_round(2, None, r2=0.2, scores={"mae": 2.0})]
    assert best_value(rounds, "mae") == 2.0
    reached = reach_target(rounds, "mae", 2.5)
    assert reached is not None
    assert reached.round == 2


@pytest.mark.parametrize(
    ("score", "value", "text"),
    [("accuracy", 0.9342, "93.42 %"), ("r2", 0.83, "R2 0.830"), ("map50", 0.312, "mAP-50 31.20 %"), (None, None, DASH)],
)
def test_a_score_in_a_list_has_its_name_unless_it_is_the_accuracy(score: str, value: float, text: str) -> None:
    assert score_text(score, value) == text
