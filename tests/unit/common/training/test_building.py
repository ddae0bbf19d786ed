"""A module that is built to be loaded draws no initial values, and is the same after loading."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.models import build_model
from fedquilt_common.training.module_arrays import build_to_load, load_arrays, to_arrays

MODELS = ("mlp", "convnet", "resnet18", "mobilenet-v2", "vgg16")


class WithOwnValues(nn.Module):
    """Parameters of several initialisers, and a tensor that is not among the arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.free = nn.Parameter(torch.randn(4))
        nn.init.orthogonal_(self.linear.weight)
        nn.init.trunc_normal_(self.free)
        self.register_buffer("mask", torch.rand(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.free * self.mask
        return out


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo_draw_nothing(name: str) -> None:
    before = torch.get_rng_state()
    module = build_to_load(build_model(name, {}, (3, 32, 32), 10))
    assert torch.equal(torch.get_rng_state(), before)
    whole = to_arrays(build_model(name, {}, (3, 32, 32), 10)())
    load_arrays(module, whole)
    assert all(array.tobytes() == whole[key].tobytes() for key, array in to_arrays(module).items())


def test_a_tensor_that_is_not_loaded_is_drawn() -> None:
    torch.manual_seed(3)
    module = build_to_load(WithOwnValues)
    assert 0 <= module.get_buffer("mask").min() < module.get_buffer("mask").max() <= 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_factory_that_needs_its_parameters_gets_them(fails: bool) -> None:
    module = build_to_load(needing_values(fails=fails))
    assert isinstance(module, nn.Linear)
    assert module.weight.abs().max() > 0


def needing_values(*, fails: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        module = nn.Linear(3, 3, dtype=torch.float64)
        if fails and not (module.weight.detach().abs() < 1).logical_and(module.weight != 0).all():
            raise ValueError("no values")
        return module

    return build
