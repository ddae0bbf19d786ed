"""Steps of ``amp`` whose gradients overflow are repeated with a smaller scale, until they are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from fedquilt_common.errors import TrainingDivergedError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.precision import LossScale
from fedquilt_common.types import Examples


def learner(build: Callable[[], nn.Module], **training: Any) -> TorchLearner:
    options = {"precision": "amp", "epochs": 1, "batch": 16, "lr": 0.1, **training}
    return TorchLearner(build, Training(**options), Classification(3))


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(40, 3))


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))


def samples(*shape: int) -> Examples:
    rng = np.random.default_rng(11)
    return Examples(rng.normal(size=(40, *shape)).astype(np.float32), rng.integers(0, 3, 40))


def same_bits(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


def overflowing_loss(outputs: Any, targets: Any) -> Any:
    return outputs.sum() * 100  # its gradient is above 65504, the greatest number of fp16, when it is scaled by 65536


@pytest.mark.parametrize("batch", [40, 8])
def test_a_step_that_overflows_is_repeated_until_it_is_taken(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have few steps: one with a single batch a round would never train if its step were left out."""
    done: list[bool] = []
    unscale = LossScale.unscale

    def watch(scale: LossScale, gradients: list[Tensor]) -> list[Tensor] | None:
        found = unscale(scale, gradients)
        done.append(found is not None)
        return found

    monkeypatch.setattr(LossScale, "unscale", watch)
    one = learner(linear, batch=batch, lr=1e-4)
    start = one.init(0)
    trained, again = (one.train(start, samples(5, 8), seed=0, loss=overflowing_loss) for _ in range(2))
    assert done.count(False) > 2
    assert trained.steps == done.count(True) / 2 == 40 / batch
    assert not np.array_equal(trained.arrays["1.weight"], start["1.weight"])
    assert same_bits(trained.arrays, again.arrays)


def test_a_repeated_batch_counts_once_in_the_statistics_of_norms() -> None:
    data = samples(3, 6, 6)
    one = learner(with_norm, batch=40, lr=1e-9)
    start = one.init(0)
    repeated, plain = (one.train(start, data, seed=0, loss=loss).arrays for loss in (overflowing_loss, None))
    assert all(np.array_equal(repeated[f"1.{name}"], plain[f"1.{name}"])
               for name in ("running_mean", "running_var", "num_batches_tracked"))  # fmt: skip
    assert repeated["1.num_batches_tracked"] == 1


def test_dropout_is_drawn_from_the_seed_in_repeated_steps() -> None:
    one = learner(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(40, 3)), lr=1e-4)
    start = one.init(0)
    first, again = (one.train(start, samples(5, 8), seed=0, loss=overflowing_loss) for _ in range(2))
    assert same_bits(first.arrays, again.arrays)


def test_gradients_that_are_never_finite_are_an_error_in_amp_too() -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return (outputs * 0).sum().sqrt()  # 0, with a gradient of 0 times infinity

    one = learner(linear, epochs=20)
    with pytest.raises(TrainingDivergedError, match="even at the smallest scale"):
        one.train(one.init(0), samples(5, 8), seed=0, loss=loss)
