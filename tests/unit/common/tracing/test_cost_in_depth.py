"""A sub-model that is cut in depth costs what its module does: nothing for stages and exits that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedquilt_common.algorithms.scalefl import absent_arrays
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.models import build_model
from fedquilt_common.models.exits import MultiExit
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.tracing.cost import cost_of
from fedquilt_common.tracing.memory_estimate import memory_to_train
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.tracing.trace import Blueprint, blueprint_for

NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)
IMAGE = (3, 16, 16)
TOKENS = (5, 6)


class Mixing(nn.Module):
    """Tokens attend to each other, in a stage that begins with a norm without arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, elementwise_affine=False)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weights = torch.softmax(self.q(y) @ self.k(y).transpose(1, 2), -1)
        return cast(Tensor, x + weights @ self.v(y))


class Scales(nn.Module):
    """Passes two scales on, as MSDNet does: an exit takes the last one, the next stage both."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(inputs, 8, 3, padding=1), nn.Conv2d(inputs, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Any) -> tuple[Tensor, Tensor]:
        fine, coarse = x if isinstance(x, tuple) else (x, x)
        return self.norm(self.fine(fine + coarse)), torch.relu(self.coarse(coarse))


class LastScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, scales: tuple[Tensor, Tensor]) -> Tensor:
        return cast(Tensor, self.fc(scales[1].mean((2, 3))))


def attention(count: int = 3) -> nn.Module:
    stages = [nn.Sequential(nn.Linear(6, 8), Mixing()), *(Mixing() for _ in range(2))][:count]
    return MultiExit(stages, [nn.Sequential(nn.Flatten(), nn.Linear(40, 4)) for _ in stages], range(count))


def scales() -> nn.Module:
    return MultiExit([Scales(3), Scales(8), Scales(8)], [LastScale() for _ in range(3)], range(3))


def shipped(name: str, exits: Sequence[int], **params: Any) -> Callable[[], nn.Module]:
    return build_model(name, {**params, "exits": exits}, IMAGE, 4)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convnet": (shipped("convnet", [0, 1], width=0.25), IMAGE),
    "vgg16": (shipped("vgg16", [1, 2], width=0.125), IMAGE),
    "resnet18": (shipped("resnet18", [1, 2], width=0.125), IMAGE),
    "mobilenet-v2": (shipped("mobilenet-v2", [1, 3], width=0.25, norm="group"), IMAGE),
    "products and norms without arrays": (attention, TOKENS),
    "several results of a stage": (scales, IMAGE),
}


def parts_in_depth(blueprint: Blueprint, width: float) -> list[Slice]:
    """The sub-models of one exit, two exits, and so on."""
    kept = prefix(blueprint.anatomy, width, "floor").kept
    exits = range(1, len(blueprint.anatomy.exits_after) + 1)
    return [Slice(blueprint.anatomy, kept, absent_arrays(blueprint.anatomy, count)) for count in exits]


def count_operations(module: nn.Module, x: Tensor) -> int:
    """Count a forward pass: torch's own counter, which counts additions too, and 4 for each normalised number."""
    normalised: list[int] = []
    for layer in module.modules():
        if isinstance(layer, NORMS):
            layer.register_forward_hook(lambda layer, given, result: normalised.append(4 * result.numel()))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(x)
    return int(counter.get_total_flops()) // 2 + sum(normalised)


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_the_module(name: str, width: float) -> None:
    build, shape = MODELS[name]
    blueprint = blueprint_for(build, np.zeros((1, *shape), np.float32))
    parts = parts_in_depth(blueprint, width)
    found = [cost_of(blueprint, part).flops for part in parts]
    assert found == [count_operations(cut_module(build, blueprint, part), torch.zeros(1, *shape)) for part in parts]
    assert found == sorted(set(found))


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_the_first_stages_cost_and_take_what_they_do_alone(count: int, private: bool) -> None:
    deep, alone = (blueprint_for(partial(attention, n), np.zeros((1, *TOKENS), np.float32)) for n in (3, count))
    cut, whole = parts_in_depth(deep, 0.5)[count - 1], parts_in_depth(alone, 0.5)[-1]
    assert cost_of(deep, cut) == cost_of(alone, whole)
    training = Training(batch=64)
    assert memory_to_train(deep, cut, training, private=private) == memory_to_train(
        alone, whole, training, private=private
    )
