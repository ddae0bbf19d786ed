"""A module that is built to be loaded draws no initial values unless something could depend on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.models import build_model
from fedquilt_common.tracing.building import build_on_meta, build_to_load


@pytest.mark.parametrize("name", ["mlp", "convnet", "resnet18", "preact-resnet18", "mobilenet-v2", "vgg16"])
def test_models_of_the_zoo_draw_nothing(name: str) -> None:
    before = torch.get_rng_state()
    module, whole = (make(build_model(name, {}, (3, 32, 32), 10)) for make in (build_to_load, lambda build: build()))
    assert not torch.equal(torch.get_rng_state(), before)  # the second one drew
    torch.set_rng_state(before)
    build_to_load(build_model(name, {}, (3, 32, 32), 10))
    assert torch.equal(torch.get_rng_state(), before)
    assert str(module) == str(whole)
    assert {key: one.shape for key, one in module.state_dict().items()} == {
        key: one.shape for key, one in whole.state_dict().items()
    }


class Model(nn.Linear):
    """A layer, and a number or tensor that no state dict holds."""

    def __init__(self, extra: Callable[[Model], object]) -> None:
        super().__init__(3, 4)
        nn.init.constant_(self.bias, 0.5)
        self.extra = extra(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def buffer(model: Model, values: Tensor) -> None:
    model.register_buffer("mask", values, persistent=False)


def seeded(model: Model) -> None:
    torch.manual_seed(42)
    model.second = nn.Linear(3, 3)
    buffer(model, torch.randn(4))


def own_generator(model: Model) -> None:
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(model.weight, generator=generator)
    buffer(model, torch.rand(4, generator=generator))


def refuse_zeros(model: Model) -> None:
    if float(model.bias.detach().sum()) != 2.0:
        raise ValueError("no values")


DEPENDENT: dict[str, Callable[[Model], object]] = {
    "a buffer that was drawn": lambda model: buffer(model, torch.randn(4)),
    "a buffer copied from a parameter": lambda model: buffer(model, model.bias.detach().clone()),
    "a buffer joined from parameters": lambda model: buffer(model, torch.cat([model.bias, model.bias]).detach()),
    "a number": lambda model: float(model.bias.detach()[0]),
    "a network that is not the model's": lambda model: [nn.Linear(3, 3)],
    "its own seed": seeded,
    "its own generator": own_generator,
    "a check of its values": refuse_zeros,
}


@pytest.mark.parametrize("extra", DEPENDENT.values(), ids=DEPENDENT)
def test_what_depends_on_initial_values_is_as_in_a_usual_build(extra: Callable[[Model], object]) -> None:
    torch.manual_seed(7)
    expected, after = Model(extra), torch.get_rng_state()
    torch.manual_seed(7)
    found = build_to_load(lambda: Model(extra))
    assert torch.equal(torch.get_rng_state(), after)
    assert tensors_of(found) == tensors_of(expected)


def real(model: Model) -> float:
    """Make a parameter that has numbers on the meta device, too, and read it."""
    model.start = nn.Parameter(torch.empty(1, device="cpu"))
    nn.init.constant_(model.start, 2.0)
    return float(model.start.detach())


def test_without_numbers_all_are_on_the_meta_device_except_what_the_factory_makes_with_numbers() -> None:
    module = build_on_meta(lambda: Model(real))
    assert module.weight.is_meta
    assert module.bias.is_meta
    assert module.extra == 2.0  # it can change what forward computes


@pytest.mark.parametrize("build", [build_on_meta, build_to_load])
def test_a_factory_that_torch_refuses_is_refused(build: Callable[[Callable[[], nn.Module]], nn.Module]) -> None:
    with pytest.raises(RuntimeError, match="in-place operation"):
        build(lambda: Model(lambda model: model.weight.normal_()))


def tensors_of(module: nn.Module) -> list[object]:
    """Everything that a module holds, in a form that can be compared."""
    extra = module.extra
    hidden = [one.tolist() for part in extra for one in part.parameters()] if isinstance(extra, list) else extra
    return [*(one.tolist() for one in (*module.parameters(), *module.buffers())), hidden]
