"""Where numbers lie in memory: the rule, what a model declares, and models that need contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.lasting_optimisers import LastingOptimisers
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.memory_layout import CONTIGUOUS, MemoryLayout, choose_layout, to_tensor
from fedquilt_common.types import Examples

IMAGES = MemoryLayout(frozenset({4}))
SERIES = MemoryLayout(frozenset({3}))


def samples(*shape: int, count: int = 8) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((count, *shape), dtype=np.float32)


def image_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 3))


def series_net() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(15, 3))


class Viewing(nn.Module):
    """Flattens with ``view``, as many published models do; that needs contiguous tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Linear(180, 3)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(self.conv(x)).view(x.size(0), -1))
        return out


class Reshaping(Viewing):
    """Takes tensors in any order."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(self.conv(x)).reshape(x.size(0), -1))
        return out


def skipping_net(channels: int) -> nn.Module:
    """The shortcut of a narrow ResNet: a convolution of one pixel that skips every other one."""
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.Conv2d(channels, 4, 1, stride=2), nn.Flatten(), nn.Linear(36, 3))


def declaring(value: bool, module: nn.Module) -> nn.Module:
    module.channels_last = value  # type: ignore[assignment]
    return module


@pytest.mark.parametrize(
    ("module", "shape", "layout"),
    [
        (image_net(), (3, 8, 8), IMAGES),
        (series_net(), (3, 8), SERIES),
        (nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5)), (3, 8), CONTIGUOUS),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), (3, 8, 8), CONTIGUOUS),
        (nn.LSTM(8, 3), (3, 8), CONTIGUOUS),
        (Viewing(), (3, 8, 8), CONTIGUOUS),
        (Reshaping(), (3, 8, 8), IMAGES),
        (declaring(False, image_net()), (3, 8, 8), CONTIGUOUS),
        (declaring(True, nn.Flatten()), (3, 8, 8), MemoryLayout(frozenset({3, 4}))),
        (skipping_net(15), (3, 8, 8), CONTIGUOUS),
        (skipping_net(16), (3, 8, 8), IMAGES),
        (declaring(True, skipping_net(4)), (3, 8, 8), CONTIGUOUS),
    ],
    ids=[
        "images",
        "series",
        "norm of series",
        "linear",
        "recurrent",
        "view",
        "reshape",
        "declines",
        "wants",
        "skips, narrow",
        "skips, wide",
        "skips, wants",
    ],
)
def test_the_rule(module: nn.Module, shape: tuple[int, ...], layout: MemoryLayout) -> None:
    assert choose_layout(module, samples(*shape)) == layout


def test_choosing_leaves_the_model_as_it_was() -> None:
    module = Viewing()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    choose_layout(module, samples(3, 8, 8))
    assert [layer.training for layer in module.modules()] == [True, True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 5, 6), (1, 6), (3, 6)])
def test_numbers_keep_their_places(shape: tuple[int, ...]) -> None:
    x, layout = samples(*shape), MemoryLayout(frozenset({3, 4}))
    tensor = layout.order(to_tensor(x))
    assert tensor.stride(1) == 1
    np.testing.assert_array_equal(tensor.numpy(), x)


@pytest.mark.parametrize(
    ("build", "shape"),
    [(image_net, (3, 8, 8)), (series_net, (3, 8)), (Viewing, (3, 8, 8)), (partial(skipping_net, 4), (3, 8, 8))],
    ids=["images", "series", "view", "skips"],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
def test_models_train_and_evaluate_in_any_order(
    build: Callable[[], nn.Module], shape: tuple[int, ...], precision: Any
) -> None:
    """The results are the same but for rounding, and arrays are contiguous whatever the order of the weights."""
    data = Examples(samples(*shape), np.arange(8) % 3)
    settings = Training(batch=4, epochs=2, lr=0.1, momentum=0.5, precision=precision)
    found = TorchLearner(build, settings, Classification(3))
    plain = TorchLearner(lambda: declaring(False, build()), settings, Classification(3))
    start = found.init(0)
    results = [one.train(start, data, seed=0).arrays for one in (found, plain)]
    assert all(array.flags.c_contiguous for array in results[0].values())
    for name in start:
        np.testing.assert_allclose(results[0][name], results[1][name], atol=1e-5 if precision == "fp32" else 0.05)
    scores = [one.evaluate(results[0], data)["loss"] for one in (found, plain)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_an_optimiser_that_lasts_continues_with_the_same_bits() -> None:
    """Its averages have the order of the weights in memory, and that of the model in a checkpoint."""
    data, settings = Examples(samples(3, 8, 8, count=4), np.arange(4) % 3), Training(batch=4, lr=0.1, momentum=0.5)
    start = TorchLearner(image_net, settings, Classification(3)).init(0)
    whole = TorchLearner(image_net, settings, Classification(3)).train(start, data, seed=0, epochs=2).arrays
    kept: dict[str, NDArray[Any]] = {}
    lasting = TorchLearner(image_net, settings, Classification(3), lasting=LastingOptimisers(kept))
    parts = lasting.train(start, data, seed=0, epochs=1).arrays
    assert all(array.flags.c_contiguous for array in kept.values())
    lasting = replace(lasting, lasting=LastingOptimisers(kept))
    parts = lasting.train(parts, data, seed=0, epochs=1).arrays
    for name in start:
        np.testing.assert_allclose(parts[name], whole[name], atol=1e-6)
