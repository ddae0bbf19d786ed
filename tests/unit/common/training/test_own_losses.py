"""Models with a loss of their own, ``training_loss``."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.unit.common.training.test_learner import learner
from torch import Tensor, nn

from fedquilt_common.learning_tasks import Regression
from fedquilt_common.types import Examples


class OwnLoss(nn.Linear):
    """Its outputs are two lists of numbers in training, and one in evaluation."""

    def forward(self, x: Tensor) -> Any:
        whole = super().forward(x)
        return [whole, -whole] if self.training else whole

    def training_loss(self, outputs: Any, targets: Tensor) -> Tensor:
        error: Tensor = (outputs[0] - outputs[1]) / 2 - 2 * targets
        return error.square().mean()


def test_a_model_may_bring_the_loss_that_training_minimises() -> None:
    x = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5, 0.0])
    one = learner(lambda: OwnLoss(4, 1), Regression(), epochs=60, lr=0.05)
    trained = one.train(one.init(0), Examples(x, y), seed=0)
    np.testing.assert_allclose(trained.arrays["weight"], [[2.0, -4.0, 1.0, 0.0]], atol=0.05)
    assert one.evaluate(trained.arrays, Examples(x, 2 * y))["r2"] > 0.99


class OwnLossInBothModes(OwnLoss):
    """Its outputs are two lists of numbers."""

    def forward(self, x: Tensor) -> Any:
        whole = nn.Linear.forward(self, x)
        return [whole, -whole]


def test_a_loss_of_the_algorithm_comes_before_that_of_the_model() -> None:
    x = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    one = learner(lambda: OwnLossInBothModes(4, 1), Regression(), epochs=60, lr=0.05)
    data = Examples(x, x @ np.array([1.0, -2.0, 0.5, 0.0]))
    own = one.train(one.init(0), data, seed=0)
    np.testing.assert_allclose(own.arrays["weight"], [[2.0, -4.0, 1.0, 0.0]], atol=0.05)
    given = one.train(one.init(0), data, seed=0, loss=lambda outputs, targets: outputs[0].square().mean())
    np.testing.assert_allclose(given.arrays["weight"], 0.0, atol=0.05)
