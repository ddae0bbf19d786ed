"""Private training of layers that draw, remember or mix: whatever follows from samples has noise, or is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.accounting import few_orders
from tests.support.packages import needs
from torch import Tensor, nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment.training_section import BatchAugment, Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.privacy.meter import PrivacyMeter
from fedquilt_common.privacy.secret_noise import open_secret
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

needs("opacus", "needs the extra dp")
RNG = np.random.default_rng(3)
DATA = Examples(RNG.normal(size=(60, 1, 4, 4)).astype(np.float32), RNG.integers(0, 3, 60))


@pytest.fixture(autouse=True, scope="module")
def quick_accountant() -> Iterator[None]:
    with few_orders():
        yield


def learner(build: Callable[[], nn.Module], **training: Any) -> TorchLearner:
    budget = Privacy(epsilon=8.0, delta=1e-3)
    meter = PrivacyMeter(budget, 2, {}, None, functools.partial(open_secret, "07" * 32))
    settings = Training(**{"epochs": 1, "batch": 20, "lr": 0.1, **training})
    return TorchLearner(build, settings, Classification(3), meter=meter)


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("layers", "training"), [((nn.Dropout(0.5),), {}), ((), {"augment": BatchAugment(crop=2, flip=True)})]
)
def test_what_is_drawn_for_a_place_in_a_batch_is_secret(layers: Any, training: dict[str, Any]) -> None:
    """One sample more moves the others to other places: known masks or crops would change all their gradients."""
    found = []
    for seed in (1, 2):  # the experiment's, which the coordinator knows
        own = learner(lambda: flat(*layers), **training)
        found.append(own.train(own.init(0), DATA, seed=seed).arrays)
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])


def test_a_phase_that_watches_other_samples_is_refused() -> None:
    own = learner(flat)
    with pytest.raises(ExperimentError, match="the number of epochs must be fixed"):
        own.train_in_turn(own.init(0), [TrainingPhase(DATA, watch=DATA)], [0], seed=1)


class Remembering(nn.Module):
    """Remembers the samples in a buffer, and has no parameters: Opacus accepts it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = x.detach().mean(dim=0)
        return x


class Centred(nn.Module):
    """A norm over the batch without a layer: Opacus cannot see it."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0) if self.training else x


class Scaled(nn.Module):
    """Has a buffer that stays, which is fine."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((16,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class TwoNames(nn.Module):
    """Its last layer is ``layers.1`` and ``head``."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.layers = nn.Sequential(nn.Flatten(), self.head)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(x))


@pytest.mark.parametrize(
    ("layer", "text"),
    [(Remembering, "training changes its buffer '1.seen'"), (Centred, "depends on the other samples of the batch")],
)
def test_a_layer_that_remembers_or_mixes_samples_is_refused(layer: type[nn.Module], text: str) -> None:
    own = learner(lambda: flat(layer()))
    with pytest.raises(ExperimentError, match=text):
        own.train(own.init(0), DATA, seed=1)


def test_a_layer_that_keeps_samples_apart_is_trained() -> None:
    own = learner(lambda: flat(Scaled(), nn.Dropout(0.5)))
    start = own.init(0)
    trained = own.train(start, DATA, seed=1).arrays
    assert (trained["3.weight"] != start["3.weight"]).any()
    np.testing.assert_array_equal(trained["1.scale"], start["1.scale"])


def test_a_layer_with_two_names_is_trained() -> None:
    own = learner(TwoNames)
    start = own.init(0)
    trained = own.train(start, DATA, seed=1).arrays
    np.testing.assert_array_equal(trained["layers.1.weight"], trained["head.weight"])
    assert (trained["head.weight"] != start["head.weight"]).any()
