"""A model must return the same outputs in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.lookalikes import GoogLeNet
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.tracing.outputs import check_outputs, example_batch
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.losses import at_deepest_output
from fedquilt_common.types import Examples


class Changing(nn.Module):
    """Returns what two functions make of its logits."""

    def __init__(self, trained: Callable[[Tensor], Any], evaluated: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)
        self.trained, self.evaluated = trained, evaluated

    def forward(self, x: Tensor) -> Any:
        logits = self.norm(self.layer(x))
        return self.trained(logits) if self.training else self.evaluated(logits)


def same(x: Tensor) -> Tensor:
    return x


SAMPLES = np.zeros((0, 6), np.float32)
ACCEPTED: list[tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = [
    (same, same),
    (lambda x: [x], same),
    (lambda x: [x, x[:, :2]], lambda x: (x, x[:, :2])),
]
REFUSED: list[tuple[Callable[[Tensor], Any], Callable[[Tensor], Any], str]] = [
    (lambda x: (x, x), same, r"2 outputs of shape \(3\), \(3\) in training, but 1 output of shape \(3\) in evaluation"),
    (same, lambda x: (x, x), "1 output of .* but 2 outputs of"),
    (lambda x: x[:, :2], same, r"shape \(2\) in training, but 1 output of shape \(3\)"),
    (lambda x: {"out": x}, lambda x: {"out": x}, "model: the model returns a dict; return one tensor"),
    (lambda x: (x, None), lambda x: (x, None), "returns a tuple with None in it"),
    (lambda x: [], lambda x: [], "returns no outputs"),
    (lambda x: x.view(7, 7), same, r"does not run on samples of shape \(6,\): RuntimeError"),
]


@pytest.mark.parametrize(("trained", "evaluated"), ACCEPTED)
def test_the_same_outputs_are_accepted(trained: Callable[[Tensor], Any], evaluated: Callable[[Tensor], Any]) -> None:
    check_outputs(lambda: Changing(trained, evaluated), SAMPLES, "model")


@pytest.mark.parametrize(("trained", "evaluated", "words"), REFUSED)
def test_other_outputs_are_refused(
    trained: Callable[[Tensor], Any], evaluated: Callable[[Tensor], Any], words: str
) -> None:
    with pytest.raises(ExperimentError, match=words):
        check_outputs(lambda: Changing(trained, evaluated), SAMPLES, "model")


def test_auxiliary_logits_are_refused_with_the_remedy() -> None:
    images = np.zeros((0, 3, 6, 6), np.float32)
    check_outputs(GoogLeNet, images, "model")
    with pytest.raises(ExperimentError, match=r"aux_logits=False.*training_loss"):
        check_outputs(lambda: GoogLeNet(aux_logits=True), images, "model")


class Own(Changing):
    def training_loss(self, outputs: Any, targets: Any) -> Tensor:
        return nn.functional.cross_entropy(outputs[0], targets)


def test_a_loss_of_its_own_explains_the_difference() -> None:
    check_outputs(lambda: Own(lambda x: (x, x), same), SAMPLES, "model")


def test_the_check_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    check_outputs(lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout()), SAMPLES, "model")
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_example_has_the_samples_shape_and_dtype() -> None:
    assert example_batch(np.zeros((0, 4), np.float32)).shape == (2, 4)
    assert torch.equal(example_batch(np.zeros((9, 4), np.int64)), torch.zeros(2, 4, dtype=torch.int64))


def test_a_board_refuses_them_too() -> None:
    data = Examples(np.ones((8, 6), np.float32), np.zeros(8, np.int64))
    plain = TorchLearner(lambda: Changing(same, same), Training(batch=4), Classification(3))
    plain.train(plain.init(0), data, seed=0)
    changing = TorchLearner(lambda: Changing(lambda x: (x, x), same), Training(batch=4), Classification(3))
    with pytest.raises(ExperimentError, match=r"2 outputs .* in training, but 1 output"):
        changing.train(changing.init(0), data, seed=0)


def test_a_loss_of_the_algorithm_that_replaces_the_models_does_not_explain_it() -> None:
    data = Examples(np.ones((8, 6), np.float32), np.zeros(8, np.int64))
    learner = TorchLearner(lambda: Own(lambda x: (x, x), same), Training(batch=4), Classification(3))
    learner.train(learner.init(0), data, seed=0)
    with pytest.raises(ExperimentError, match=r"in evaluation: here the algorithm has a loss of its own in the place "):
        learner.train(learner.init(0), data, seed=0, loss=at_deepest_output(Classification(3).loss))
