"""Keras's optimisers, against their published rules written out in numpy; and that torch's differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.training.optimisers import Optimiser

GRADIENTS = np.array([[1e-4, -0.5, 2.0], [3e-4, 0.25, -1.0], [-2e-4, 0.1, 0.5]])
Rule = Callable[[int, NDArray[Any], list[NDArray[Any]]], NDArray[Any]]


def keras_rmsprop(step: int, gradient: NDArray[Any], averages: list[NDArray[Any]]) -> NDArray[Any]:
    averages[0] = 0.9 * averages[0] + 0.1 * gradient**2
    return np.asarray(gradient / np.sqrt(averages[0] + 1e-7))


def keras_adam(step: int, gradient: NDArray[Any], averages: list[NDArray[Any]]) -> NDArray[Any]:
    averages[0] = 0.9 * averages[0] + 0.1 * gradient
    averages[1] = 0.999 * averages[1] + 0.001 * gradient**2
    factor = np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return np.asarray(factor * averages[0] / (np.sqrt(averages[1]) + 1e-7))


def moved(optimiser: Any) -> NDArray[Any]:
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    one = Optimiser([parameter], Training(optimiser=optimiser, lr=0.01))
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor(gradient)
        one.update()
    return np.asarray(parameter.detach().numpy())


@pytest.mark.parametrize(("name", "rule"), [("rmsprop-keras", keras_rmsprop), ("adam-keras", keras_adam)])
def test_steps_are_those_of_keras(name: str, rule: Rule) -> None:
    expected, averages = np.zeros(3), [np.zeros(3), np.zeros(3)]
    for step, gradient in enumerate(GRADIENTS, 1):
        expected -= 0.01 * rule(step, gradient, averages)
    np.testing.assert_allclose(moved(name), expected, rtol=1e-9)
    assert not np.allclose(moved(name), moved(name.removesuffix("-keras")), rtol=1e-3)
