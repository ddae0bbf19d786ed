"""The scores of the classes are those of scikit-learn, and no client can send impossible ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.learning_tasks.class_scores import clip_counts, count_classes, score_counts

ANSWERS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


@given(ANSWERS, st.integers(1, 3))
def test_pooled_counts_give_the_scores_of_scikit_learn(pairs: list[tuple[int, int]], clients: int) -> None:
    from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score  # slow to load: not for every selection

    y, answers = np.array(pairs).T
    counts = sum(count_classes(y[part::clients], answers[part::clients], 5) for part in range(clients))
    found = score_counts(np.asarray(counts))
    held, known = sorted(set(y)), sorted({*y, *answers})
    recalls = recall_score(y, answers, labels=held, average=None, zero_division=0.0)
    expected = {f"class_accuracy_{k}": value for k, value in zip(held, recalls, strict=True)}
    expected["macro_f1"] = f1_score(y, answers, labels=known, average="macro", zero_division=0.0)
    expected["balanced_accuracy"] = np.mean(recalls)
    assert set(found) == set(expected)
    assert np.allclose([found[name] for name in expected], list(expected.values()), atol=1e-12)
    if len(held) > 1 and set(answers) <= set(y):  # else scikit-learn warns
        assert abs(found["balanced_accuracy"] - balanced_accuracy_score(y, answers)) < 1e-12


def test_without_samples_there_is_no_score() -> None:
    assert score_counts(np.zeros((3, 4))) == {}


@given(st.lists(st.floats(), min_size=6, max_size=6))
def test_no_counts_of_a_client_make_an_impossible_score(values: list[float]) -> None:
    scores = score_counts(clip_counts(np.array(values).reshape(3, 2)))
    assert all(0 <= value <= 1 for value in scores.values())
