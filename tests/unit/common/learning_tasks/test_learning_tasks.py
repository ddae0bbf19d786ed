"""Learning tasks: their counts add up over batches and clients, and give the scores of scikit-learn."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedquilt_common.errors import DataUnavailableError, ExperimentError, UnknownNameError
from fedquilt_common.learning_tasks import (
    LEARNING_TASKS,
    Classification,
    LearningTask,
    NextWord,
    Regression,
    add_counts,
    make_learning_task,
)
from fedquilt_common.learning_tasks.cross_entropy import sum_cross_entropy
from fedquilt_common.learning_tasks.metrics import MAIN_METRICS, METRICS, SECOND_METRICS
from fedquilt_common.types import Dataset, Examples

RNG = np.random.default_rng(0)
TASKS: list[LearningTask] = [Classification(3), Regression(), Regression(2), NextWord(5)]
EACH = pytest.mark.parametrize("task", TASKS, ids=str)


def dataset(y: Any, classes: int, task: str = "") -> Dataset:
    examples = Examples(np.zeros((len(y), 2), np.float32), np.asarray(y))
    return Dataset("toy", examples, examples, classes, task=task)


def samples(task: LearningTask, count: int) -> tuple[Any, Any]:
    """Random outputs and labels."""
    if isinstance(task, Classification):
        return RNG.normal(size=(count, 3)).astype(np.float32), RNG.integers(0, 3, count)
    if isinstance(task, NextWord):
        return RNG.normal(size=(count, 4, 5)).astype(np.float32), RNG.integers(0, 5, (count, 4))
    width = getattr(task, "outputs", 1)
    return RNG.normal(size=(count, width)).astype(np.float32), RNG.normal(size=(count, width))


def test_each_task_has_its_own_name_and_metrics_of_the_table() -> None:
    for name, task in LEARNING_TASKS.items():
        assert task.name == name
        assert all(METRICS[metric.name] is metric for metric in task.metrics)


@EACH
def test_counts_have_their_shapes_and_add_up(task: LearningTask) -> None:
    outputs, y = samples(task, 30)
    targets = task.targets(y)
    parts = [task.count(outputs[at : at + 7], targets[at : at + 7]) for at in range(0, 30, 7)]
    assert {name: x.shape for name, x in parts[0].items()} == dict(task.count_shapes)
    whole, pooled = task.scores(task.count(outputs, targets)), task.scores(add_counts(parts))
    assert whole == pytest.approx(pooled, rel=1e-12)
    assert set(whole) >= {metric.name for metric in task.metrics}


@EACH
@given(data=st.data())
def test_no_counts_of_a_client_make_an_impossible_score(task: LearningTask, data: st.DataObject) -> None:
    counts = {name: data.draw(arrays(np.float64, shape)) for name, shape in task.count_shapes.items()}
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        scores = task.scores(counts)
    for metric in task.metrics:
        value = scores.get(metric.name, metric.low)
        assert metric.low <= value <= metric.high, metric.name


@EACH
def test_nothing_counted_gives_no_scores(task: LearningTask) -> None:
    assert task.scores({name: np.zeros(shape) for name, shape in task.count_shapes.items()}) == {}


@EACH
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e38])
def test_counts_stay_finite_so_that_they_can_travel(task: LearningTask, odd: float) -> None:
    outputs, y = samples(task, 5)
    outputs[1, 0] = odd
    with np.errstate(invalid="ignore", over="ignore"):
        counts = task.count(outputs, task.targets(y))
    assert all(np.isfinite(x).all() for x in counts.values())


def test_r2_and_mae_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import mean_absolute_error, r2_score

    outputs, y = samples(Regression(2), 50)
    y = y + np.array([1000.0, 0.0])  # a mean far from 0 does not cost digits that anybody sees
    outputs = (y + 0.3 * outputs).astype(np.float32)
    task = Regression(2)
    found = task.scores(task.count(outputs, task.targets(y)))
    right, answers = y.astype(np.float32).astype(np.float64), outputs.astype(np.float64)
    assert found["r2"] == pytest.approx(r2_score(right, answers), abs=1e-9)
    assert found["mae"] == pytest.approx(mean_absolute_error(right, answers), abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6, -3.3])
def test_a_target_that_never_changes_has_nothing_to_explain(value: float) -> None:
    task, y = Regression(), np.full(1000, value)
    assert task.scores(task.count(np.zeros((1000, 1), np.float32), task.targets(y)))["r2"] == 0.0


def test_the_cross_entropy_is_torchs() -> None:
    import torch
    from torch.nn import functional

    outputs, y = samples(Classification(3), 40)
    expected = functional.cross_entropy(torch.tensor(outputs).double(), torch.tensor(y)).item()
    task = Classification(3)
    assert task.scores(task.count(outputs, y))["loss"] == pytest.approx(expected, rel=1e-14)


def test_the_cross_entropy_of_many_rows_does_not_fill_the_memory() -> None:
    logits, y = np.zeros((1 << 12, 1 << 10), np.float32), np.zeros(1 << 12, np.int64)
    tracemalloc.start()
    try:
        assert sum_cross_entropy(logits, y) == pytest.approx(len(y) * np.log(logits.shape[1]))
        assert tracemalloc.get_traced_memory()[1] < 24 << 20  # all of it in float64: 32 MiB
    finally:
        tracemalloc.stop()


def test_without_a_name_the_classes_decide() -> None:
    assert make_learning_task(dataset([0, 1], 2)) == Classification(2)
    assert make_learning_task(dataset([0.5, 1.5], 0)) == Regression(1)
    assert make_learning_task(dataset([[0.5, 1.5]], 0, "regression")) == Regression(2)
    assert make_learning_task(dataset([[1, 2]], 3, "next-word")) == NextWord(3)


@pytest.mark.parametrize(
    ("y", "classes", "task", "words"),
    [
        ([0.5], 0, "classification", "0 classes and labels of shape"),
        ([[0, 1]], 2, "", r"labels of shape \('n', 2\)"),
        ([0, 1], 2, "regression", "has 2 classes"),
        ([0, 1], 2, "next-word", r"sequences of shape \(n, length\)"),
        ([[0, 1]], 0, "next-word", "size of the vocabulary"),
    ],
)
def test_labels_that_are_not_those_of_the_task_are_refused(y: Any, classes: int, task: str, words: str) -> None:
    with pytest.raises(DataUnavailableError, match=words):
        make_learning_task(dataset(y, classes, task))


def test_an_unknown_task_is_refused_with_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="'toy': its task 'ranking' is unknown; choose one of: classification"):
        make_learning_task(dataset([0], 2, "ranking"))


def test_targets_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataUnavailableError, match="not a finite number"):
        Regression().check(np.array([1.0, np.nan]))


@pytest.mark.parametrize("shape", [(4, 2), (4, 4), (4,), (3, 3), (4, 1, 3)])
def test_outputs_that_are_no_logits_of_the_classes_are_refused(shape: tuple[int, ...]) -> None:
    import torch

    y = np.array([0, 1, 2, 1])
    with pytest.raises(ExperimentError, match=r"classification needs a logit .* shape \(4, 3\)"):
        Classification(3).count(np.zeros(shape, np.float32), y)
    with pytest.raises(ExperimentError, match="choose a model with as many outputs"):
        Classification(3).loss(torch.zeros(shape), torch.tensor(y))


def test_labels_that_are_no_classes_are_refused() -> None:
    with pytest.raises(DataUnavailableError, match=r"a label is 1\.7, which is no class"):
        Classification(3).check(np.array([0.0, 1.7]))
    Classification(3).check(np.array([0.0, 2.0]))


def test_the_main_metrics_of_all_tasks_are_listed_and_more_is_better() -> None:
    assert {task.metrics[0] for task in LEARNING_TASKS.values()} == set(MAIN_METRICS)
    assert all(metric.best == "max" for metric in MAIN_METRICS)
    listed = {metric for task in LEARNING_TASKS.values() for metric in task.metrics}
    assert listed == set(METRICS.values())
    assert set(SECOND_METRICS) < listed - set(MAIN_METRICS)
