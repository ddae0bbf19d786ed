"""Evaluation by the clients: what they count, and how the counts are pooled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedquilt_common.aggregation.client_evaluation import (
    EVALUATE,
    NO_COUNTS,
    evaluate_on_clients,
    evaluation_reply,
    pool_classes,
    pool_counts,
)
from fedquilt_common.algorithm_api import Reply, State
from fedquilt_common.learning_tasks.class_scores import count_classes

STATE = State({"w": np.ones(2, np.float32)})


def logits(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def test_counts_are_those_of_torch() -> None:
    y, one, two = np.array([0, 3, 1, 2, 2]), logits(5, 0), logits(5, 1)
    found = evaluation_reply(y, one, two)
    assert found.arrays["global_classes"].tolist() == count_classes(y, one.argmax(1), 4).tolist()
    assert found.metrics["samples"] == 5
    for name, given in (("global", one), ("personal", two)):
        assert found.metrics[f"{name}_right"] == (given.argmax(1) == y).sum()
        expected = functional.cross_entropy(torch.tensor(given).double(), torch.tensor(y), reduction="sum")
        assert found.metrics[f"{name}_loss"] == pytest.approx(expected.item())


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e38])
def test_counts_stay_finite_so_that_they_can_travel(odd: float) -> None:
    given = logits(3, 0)
    given[1, 2] = odd
    with np.errstate(invalid="ignore", over="ignore"):
        metrics = evaluation_reply(np.array([0, 1, 2]), given, given).metrics
    assert all(math.isfinite(value) and 0 <= value <= 1e12 for value in metrics.values())


def test_g_and_p_are_pooled_over_samples_not_over_clients() -> None:
    counts = {
        0: {"samples": 90.0, "global_right": 45.0, "personal_right": 90.0, "global_loss": 90.0, "personal_loss": 9.0},
        1: {"samples": 10.0, "global_right": 10.0, "personal_right": 0.0, "global_loss": 0.0, "personal_loss": 91.0},
        2: NO_COUNTS.metrics,
    }
    found = pool_counts(counts)
    assert found["global_accuracy"] == found["accuracy"] == 0.55
    assert found["personal_accuracy"] == 0.9
    assert (found["loss"], found["personal_loss"]) == (0.9, 1.0)
    assert (found["tested_samples"], found["tested_clients"]) == (100, 2)


def test_nobody_has_samples_to_test_on() -> None:
    assert pool_counts({0: NO_COUNTS.metrics}) == {"tested_samples": 0.0, "tested_clients": 0.0}


def test_a_client_that_claims_too_much_cannot_pass_one() -> None:
    lie = {**NO_COUNTS.metrics, "samples": 1.0, "global_right": 5.0, "personal_right": 9e11}
    assert (pool_counts({0: lie})["global_accuracy"], pool_counts({0: lie})["personal_accuracy"]) == (1.0, 1.0)


def test_class_counts_are_pooled_and_a_client_without_samples_has_none() -> None:
    y = np.array([0, 0, 1])
    one, two = (evaluation_reply(y, eye(answers), eye([0, 0, 1])) for answers in ([0, 0, 0], [1, 1, 1]))
    found = pool_classes({0: one, 1: two, 2: NO_COUNTS})
    assert found == {
        "balanced_accuracy": 0.5, "macro_f1": pytest.approx((4 / 7 + 2 / 5) / 2), "class_accuracy_0": 0.5,
        "class_accuracy_1": 0.5, "personal_balanced_accuracy": 1.0, "personal_macro_f1": 1.0,
    }  # fmt: skip
    assert pool_classes({2: NO_COUNTS}) == {}


def eye(answers: list[int]) -> Any:
    """Logits that name these classes."""
    return np.eye(2, dtype=np.float32)[answers]


class ServerContext:
    classes = 5
    fleet = dict.fromkeys((4, 7, 9))
    measures = True


def test_everybody_who_is_there_is_asked_and_nothing_but_counts_is_expected() -> None:
    ctx: Any = ServerContext()
    steps = evaluate_on_clients(STATE, ctx)
    tasks = next(steps)
    assert tasks.keys() == {4, 7, 9}
    assert all(task.kind == EVALUATE and task.arrays is STATE.arrays for task in tasks.values())
    shapes = {"global_classes": (3, 5), "personal_classes": (3, 5)}
    assert {str(task.expect) for task in tasks.values()} == {str((shapes, {}))}
    replies = {4: Reply({}, metrics={**NO_COUNTS.metrics, "samples": 4.0, "global_right": 3.0, "personal_right": 1.0})}
    with pytest.raises(StopIteration) as done:
        steps.send(replies)
    assert done.value.value.scores["global_accuracy"] == 0.75
    assert done.value.value.arrays is STATE.arrays


def test_where_the_coordinator_evaluates_nobody_is_asked() -> None:
    ctx: Any = ServerContext()
    ctx.measures = False
    with pytest.raises(StopIteration) as done:
        next(evaluate_on_clients(STATE, ctx))
    assert done.value.value is STATE
