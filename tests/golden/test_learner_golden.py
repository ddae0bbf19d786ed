"""The learner against published code (FedDyn 48a19fa, PFLlib d832e76): Linear(3, 2), full batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.data import golden_vectors
from torch import nn

from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples


@pytest.fixture(scope="module")
def golden() -> Any:
    return golden_vectors("h_optimiser_updates.json")


def trained(golden: Any, client: int, steps: int, penalty: Any = None) -> NDArray[Any]:
    """Parameters, weight then bias, after full-batch steps at lr 0.1."""
    flat = np.array(golden["w0"], dtype=np.float32)
    data = Examples(np.array(golden["data_x"][client], np.float32), np.array(golden["data_y"][client]))
    learner = TorchLearner(lambda: nn.Linear(3, 2), Training(epochs=steps, batch=len(data), lr=0.1), Classification(2))
    start = {"weight": flat[:6].reshape(2, 3), "bias": flat[6:]}
    arrays = learner.train(start, data, seed=0, penalty=penalty).arrays
    return np.concatenate([arrays["weight"].ravel(), arrays["bias"]])


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_fedprox(golden: Any, steps: int) -> None:
    vectors = golden["fedprox"]
    penalty = ALGORITHMS["fedprox"](mu=vectors["mu"]).penalty()
    expected = vectors["after_steps_1_2_3(PFLlib official)"][steps - 1]
    found = trained(golden, vectors["client"], steps, penalty)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_fedprox_as_in_the_other_repository(golden: Any) -> None:
    penalty = ALGORITHMS["fedprox"](mu=golden["fedprox"]["mu"]).penalty()
    expected = golden["fedprox"]["after_3_steps(FedDyn-repo official)"]
    np.testing.assert_allclose(trained(golden, 0, 3, penalty), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("client", [0, 1, 2])
def test_fedavg_clients(golden: Any, client: int) -> None:
    expected = golden["fedavg"]["client_params"][client]
    np.testing.assert_allclose(trained(golden, client, steps=2), expected, rtol=0, atol=1e-6)


def test_the_penalty_is_what_makes_the_difference(golden: Any) -> None:
    expected = golden["fedprox"]["after_steps_1_2_3(PFLlib official)"][2]
    assert np.abs(trained(golden, 0, steps=3) - expected).max() > 1e-3
