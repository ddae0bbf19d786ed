"""Next word: padding counts nowhere, and loss and gradient are torch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.learning_tasks import NextWord

TASK = NextWord(4)
Y = np.array([[1, 2, 0], [3, 0, 0], [0, 0, 0]])
"""Three words, six places of padding."""
LOGITS = np.random.default_rng(0).normal(size=(3, 3, 4)).astype(np.float32)


def test_only_words_count() -> None:
    counts = TASK.count(LOGITS, TASK.targets(Y))
    assert counts["words"] == 3
    words = [(0, 0, 1), (0, 1, 2), (1, 0, 3)]
    assert counts["right"] == sum(LOGITS[n, place].argmax() == word for n, place, word in words)
    changed = LOGITS.copy()
    changed[Y == 0] = 1e9
    assert TASK.count(changed, TASK.targets(Y)) == counts


def test_loss_and_perplexity_are_those_of_the_words() -> None:
    expected = functional.cross_entropy(torch.tensor(LOGITS)[Y != 0].double(), torch.tensor(Y)[Y != 0]).item()
    scores = TASK.scores(TASK.count(LOGITS, TASK.targets(Y)))
    assert scores["loss"] == pytest.approx(expected, rel=1e-12)
    assert scores["perplexity"] == pytest.approx(math.exp(expected), rel=1e-12)
    outputs = torch.tensor(LOGITS, requires_grad=True)
    loss = TASK.loss(outputs, torch.from_numpy(TASK.targets(Y)))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    loss.backward()
    assert outputs.grad is not None
    assert not outputs.grad[torch.tensor(Y) == 0].any()


def test_a_batch_of_padding_has_a_loss_of_zero() -> None:
    outputs = torch.tensor(LOGITS, requires_grad=True)
    assert TASK.loss(outputs, torch.zeros(3, 3, dtype=torch.int64)).item() == 0.0
    assert TASK.scores(TASK.count(LOGITS, np.zeros((3, 3), np.int64))) == {}


def test_a_model_with_other_outputs_is_refused_with_advice() -> None:
    with pytest.raises(ExperimentError, match=r"shape \(2, 4\), but the next words \(3, 3\); .* outputs: each"):
        TASK.count(LOGITS[:2, -1], TASK.targets(Y))


@pytest.mark.parametrize("y", [[[4]], [[-1]], [[0.5]]])
def test_words_outside_the_vocabulary_are_refused(y: list[list[float]]) -> None:
    with pytest.raises(DataUnavailableError, match="but the vocabulary has 4; number them"):
        TASK.check(np.array(y))


def test_the_words_that_a_client_holds() -> None:
    held = TASK.held_classes(Y)
    assert held is not None
    assert held.tolist() == [True, True, True, True]
    assert TASK.held_classes(np.array([[2, 0]])).tolist() == [True, False, True, False]  # type: ignore[union-attr]
