"""Evaluation by the clients: what they send, and how the counts are pooled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.support.tables import each

from fedquilt_common.aggregation.client_evaluation import (
    EVALUATE,
    GLOBAL,
    NO_COUNTS,
    PERSONAL,
    client_scores,
    evaluate_locally,
    evaluate_on_clients,
    evaluation_reply,
    pool_scores,
)
from fedquilt_common.algorithm_api import Reply, State
from fedquilt_common.learning_tasks import Classification, LearningTask, Regression, ScoreCounts
from fedquilt_common.types import Examples
from fedquilt_common.wire.codec import FileArrays, write_arrays

STATE = State({"w": np.ones(2, np.float32)})
TWO = Classification(2)


def eye(answers: list[int]) -> Any:
    """Logits that name these classes."""
    return np.eye(2, dtype=np.float32)[answers]


def classified(y: list[int], shared: list[int], own: list[int]) -> Reply:
    """The reply of a client whose models name these classes."""
    return evaluation_reply(len(y), *(TWO.count(eye(answers), np.array(y)) for answers in (shared, own)))


def test_g_and_p_are_pooled_over_samples_not_over_clients() -> None:
    large = classified([0] * 90, [0] * 45 + [1] * 45, [0] * 90)
    small = classified([1] * 10, [1] * 10, [0] * 10)
    found = pool_scores({0: large, 1: small, 2: NO_COUNTS}, TWO)
    assert found["global_accuracy"] == found["accuracy"] == 0.55
    assert found["personal_accuracy"] == 0.9
    right, wrong = np.log1p(np.exp([-1.0, 1.0]))
    assert found["loss"] == pytest.approx((55 * right + 45 * wrong) / 100)
    assert found["personal_loss"] == pytest.approx((90 * right + 10 * wrong) / 100)
    assert (found["tested_samples"], found["tested_clients"]) == (100, 2)


def test_class_counts_are_pooled_and_a_client_without_samples_has_none() -> None:
    one, two = (classified([0, 0, 1], answers, [0, 0, 1]) for answers in ([0, 0, 0], [1, 1, 1]))
    found = pool_scores({0: one, 1: two, 2: NO_COUNTS}, TWO)
    expected = {
        "balanced_accuracy": 0.5, "macro_f1": pytest.approx((4 / 7 + 2 / 5) / 2), "class_accuracy_0": 0.5,
        "class_accuracy_1": 0.5, "personal_balanced_accuracy": 1.0, "personal_macro_f1": 1.0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert "personal_class_accuracy_0" not in found


def test_nobody_has_samples_to_test_on() -> None:
    assert pool_scores({0: NO_COUNTS}, TWO) == {"tested_samples": 0.0, "tested_clients": 0.0}


def test_regression_is_pooled_as_if_one_client_had_all_samples() -> None:
    rng, task = np.random.default_rng(0), Regression()
    y, answers = rng.normal(5, 2, (40, 1)).astype(np.float32), rng.normal(5, 2, (40, 1)).astype(np.float32)
    parts = {client: evaluation_reply(len(at), *[task.count(answers[at], y[at])] * 2)
             for client, at in enumerate(np.split(np.arange(40), [7, 15, 16]))}  # fmt: skip
    found, whole = pool_scores(parts, task), task.scores(task.count(answers, y))
    assert {name: found[name] for name in whole} == pytest.approx(whole)
    assert found["global_r2"] == found["r2"] == found["personal_r2"]
    assert found["personal_mae"] == found["mae"]
    assert pool_scores(dict(reversed(parts.items())), task) == found  # the order of the replies does not matter


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_counts_travel_with_every_bit(precision: Any, tmp_path: Any) -> None:
    task = Regression(2)
    y = np.random.default_rng(0).normal(1e5, 1, (9, 2)).astype(np.float32)
    reply = evaluation_reply(9, task.count(y + np.float32(0.1), y))
    path = write_arrays(tmp_path / "reply", reply.arrays, precision).path
    received = Reply(FileArrays(path), metrics=reply.metrics)
    assert pool_scores({0: received}, task, ["global"]) == pool_scores({0: reply}, task, ["global"])


@pytest.mark.parametrize("task", [Classification(2), Regression(2)], ids=str)
@given(data=st.data())
def test_no_bits_of_a_client_make_an_impossible_score(task: LearningTask, data: st.DataObject) -> None:
    bits = {f"global_{name}": data.draw(arrays(np.int64, shape)) for name, shape in task.count_shapes.items()}
    replies = {client: Reply(bits, metrics={"samples": 3.0}) for client in range(2)}
    scores = pool_scores(replies, task, ["global"])
    for metric in task.metrics:
        assert metric.low <= scores.get(metric.name, metric.low) <= metric.high, metric.name


class Sums(Regression):
    """A learning task whose scores are the sums of the counts, the main one that of the samples."""

    def scores(self, counts: ScoreCounts) -> dict[str, float]:
        return {name: float(count.sum()) for name, count in counts.items()} | {"r2": float(counts["samples"])}


@each([1e308, -1e308, np.inf, -np.inf, np.nan])
def test_the_sums_of_any_counts_are_finite(value: float) -> None:
    counts = {name: np.full(shape, value) for name, shape in Sums().count_shapes.items()}
    found = pool_scores({client: evaluation_reply(3, counts) for client in range(3)}, Sums(), GLOBAL)
    assert counts.keys() < found.keys()
    assert np.isfinite(list(found.values())).all()


def test_each_client_has_a_score_of_its_own_model() -> None:
    replies = {3: classified([0, 1], [0, 0], [0, 1]), 0: classified([0, 1], [0, 1], [1, 1]), 1: NO_COUNTS}
    assert client_scores(replies, TWO) == {"0": 0.5, "3": 1.0}


def test_a_score_that_is_not_finite_is_left_out() -> None:
    class Diverging(Regression):
        """A learning task whose score is not finite for models 0 and 1; the built-in tasks have limits."""

        def scores(self, counts: ScoreCounts) -> dict[str, float]:
            return {"r2": (np.nan, np.inf, 0.5)[int(counts["samples"])]}

    zeros = {name: np.zeros(shape) for name, shape in Diverging().count_shapes.items()}
    replies = {client: evaluation_reply(2, None, {**zeros, "samples": np.array(float(client))}) for client in range(3)}
    assert client_scores(replies, Diverging()) == {"2": 0.5}


def test_personal_models_alone_have_all_scores_under_their_own_name() -> None:
    """The scores of a coordinator's own model, such as that of DS-FL, replace the plain ones."""
    replies = {0: classified([0, 1], [0, 0], [0, 1]), 1: classified([1, 1], [0, 0], [1, 0])}
    found = pool_scores(replies, TWO, PERSONAL)
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "loss"):
        assert found[f"personal_{name}"] == found[name], name


def test_g_counts_the_samples_of_shares_without_a_client_and_p_does_not() -> None:
    """The FedReb thesis's Table 6.2: G is on the test sets of all 20 clients, P on those of the four boards."""
    one = classified([0] * 10, [0] * 10, [0] * 10)
    spare = TWO.count(eye([0] * 5 + [1] * 25), np.zeros(30, np.int64))
    found = pool_scores({0: one}, TWO, spare=spare)
    assert found["global_accuracy"] == found["accuracy"] == 15 / 40
    assert found["personal_accuracy"] == 1.0
    assert found["tested_samples"] == 10


class SpareLearner:
    """A learner whose model names class 0 everywhere."""

    def count(self, arrays: Any, data: Examples) -> list[Any]:
        return [TWO.count(eye([0] * len(data)), data.y)]


class ServerContext:
    learning_task = TWO
    fleet = dict.fromkeys((4, 7, 9))
    measures = True
    spare_test = Examples(np.zeros((0, 1)), np.zeros(0, np.int64))
    learner = SpareLearner()


def test_everybody_who_is_there_is_asked_and_nothing_but_counts_is_expected() -> None:
    ctx: Any = ServerContext()
    steps = evaluate_on_clients(STATE, ctx)
    tasks = next(steps)
    assert tasks.keys() == {4, 7, 9}
    assert all(task.kind == EVALUATE and task.arrays is STATE.arrays for task in tasks.values())
    shapes = {"global_classes": (3, 2), "global_loss": (), "personal_classes": (3, 2), "personal_loss": ()}
    assert {str(task.expect) for task in tasks.values()} == {str((shapes, {}))}
    with pytest.raises(StopIteration) as done:
        steps.send({4: classified([0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1])})
    assert done.value.value.scores["global_accuracy"] == 0.75
    assert done.value.value.report["client_accuracy"] == {"4": 0.25}
    assert done.value.value.arrays is STATE.arrays


def finish(steps: Any, replies: dict[int, Reply]) -> State:
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(replies)
    state: State = done.value.value
    return state


def test_the_coordinator_tests_on_the_shares_without_a_client() -> None:
    ctx: Any = ServerContext()
    ctx.spare_test = Examples(np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1]))
    scores = finish(evaluate_on_clients(STATE, ctx), {4: classified([0, 0], [0, 0], [0, 1])}).scores
    assert scores["global_accuracy"] == 5 / 8
    assert scores["personal_accuracy"] == 0.5


class Coordinated:
    """An algorithm whose coordinator evaluates."""

    def evaluate(self, state: State, ctx: Any) -> dict[str, float]:
        return {"accuracy": 0.25, "accuracy_weak": 0.125}


def test_local_scores_stand_beside_those_of_the_coordinator() -> None:
    ctx: Any = ServerContext()
    ctx.spare_test = Examples(np.zeros((6, 1)), np.ones(6, np.int64))  # no client's, so they are not local
    large, small = ({"global": TWO.count(eye(answers), np.zeros(len(answers), np.int64))} for answers in
                    ([0] * 8, [1, 1]))  # fmt: skip
    replies = {4: evaluation_reply(8, large["global"]), 9: evaluation_reply(2, small["global"]), 7: NO_COUNTS}
    algorithm: Any = Coordinated()
    state = finish(evaluate_locally(STATE, ctx, algorithm), replies)
    assert state.scores == {
        "accuracy": 0.25, "accuracy_weak": 0.125, "local_accuracy": 0.8, "mean_local_accuracy": 0.5,
        "tested_samples": 10, "tested_clients": 2,
    }  # fmt: skip
    assert state.report["client_accuracy"] == {"4": 1.0, "9": 0.0}


def test_without_test_samples_the_coordinator_scores_alone() -> None:
    ctx: Any = ServerContext()
    algorithm: Any = Coordinated()
    state = finish(evaluate_locally(STATE, ctx, algorithm), {4: NO_COUNTS})
    assert state.scores == {"accuracy": 0.25, "accuracy_weak": 0.125, "tested_samples": 0, "tested_clients": 0}


def test_where_the_coordinator_evaluates_nobody_is_asked() -> None:
    ctx: Any = ServerContext()
    ctx.measures = False
    with pytest.raises(StopIteration) as done:
        next(evaluate_on_clients(STATE, ctx))
    assert done.value.value is STATE
