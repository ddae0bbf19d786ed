"""What functions of torch cost is what the layers of the same kind cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.support import renamed_layers
from tests.support.user_modules import Build, conv, linear, module
from torch import Tensor, nn
from torch.nn import functional

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.tracing.cost import cost_of
from fedquilt_common.tracing.memory_estimate import Estimate, memory_to_train
from fedquilt_common.tracing.trace import Blueprint, blueprint_for


def plan(build: Build, *shape: int) -> Blueprint:
    return blueprint_for(build, np.zeros((1, *shape), np.float32))


def convolve(function: Callable[..., Tensor], places: tuple[int, ...]) -> tuple[Any, Any]:
    """A forward that calls a function, and one that calls the layer."""
    return (
        lambda s, x: s.h(function(x, s.c.weight, s.c.bias).mean(places)),
        lambda s, x: s.h(s.c(x).mean(places)),
    )


def standardised(s: Any, x: Tensor) -> Any:
    weight = s.c.weight - s.c.weight.mean(dim=(1, 2, 3), keepdim=True)
    return s.h(functional.conv2d(x, weight, s.c.bias).mean((2, 3)))


LINEAR = (lambda s, x: s.h(functional.linear(x, s.c.weight, s.c.bias))), (lambda s, x: s.h(s.c(x)))
SAME: dict[str, tuple[tuple[Any, Any], Any, tuple[int, ...]]] = {
    "conv1d": (convolve(functional.conv1d, (2,)), lambda: nn.Conv1d(3, 8, 3), (3, 8)),
    "conv2d": (convolve(functional.conv2d, (2, 3)), conv(3, 8, 3), (3, 8, 8)),
    "conv3d": (convolve(functional.conv3d, (2, 3, 4)), lambda: nn.Conv3d(3, 8, 3), (3, 4, 4, 4)),
    "linear": (LINEAR, linear(6, 8), (6,)),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_a_function_costs_what_its_layer_does(name: str, width: float) -> None:
    forwards, layer, shape = SAME[name]
    function, own = (plan(module(forward, c=layer, h=linear(8, 3)), *shape) for forward in forwards)
    parts = [prefix(each.anatomy, width, "floor") for each in (function, own)]
    assert cost_of(function, parts[0]) == cost_of(own, parts[1])
    for private in (False, True):
        estimates = [memory_to_train(each, part, Training(batch=8), private=private)
                     for each, part in zip((function, own), parts, strict=True)]  # fmt: skip
        assert estimates[0] == estimates[1]


def test_a_layer_by_another_name_costs_what_its_base_does() -> None:
    own, base = (
        plan(module(lambda s, x: s.h(s.n(s.c(x)).mean((2, 3))), c=conv(3, 8, 3), n=norm, h=linear(8, 3)), 3, 8, 8)
        for norm in (lambda: renamed_layers.Norm(8), lambda: nn.BatchNorm2d(8))
    )
    half = [prefix(each.anatomy, 0.5, "floor") for each in (own, base)]
    assert cost_of(own, half[0]) == cost_of(base, half[1])


def test_a_convolution_of_computed_weights_costs_as_much() -> None:
    build = module(standardised, c=conv(3, 8, 3), h=linear(8, 3))
    found = plan(build, 3, 8, 8)
    assert cost_of(found, prefix(found.anatomy, 1.0, "floor")).flops == 8 * 3 * 9 * 36 + 8 * 3


def test_parts_of_a_tensor_take_no_memory_of_their_own() -> None:
    def kept(forward: Any) -> int:
        found = plan(module(forward, a=linear(6, 8), h=linear(4, 3)), 6)
        return memory_to_train(found, prefix(found.anatomy, 1.0, "floor"), Training(batch=8)).activations

    def sliced(s: Any, x: Tensor) -> Any:
        return s.h(s.a(x)[:, 2:6])

    def narrowed(s: Any, x: Tensor) -> Any:
        return s.h(s.a(x).narrow(1, 2, 4))

    def unbound(s: Any, x: Tensor) -> Any:
        return s.h(s.a(x).view(-1, 2, 4).unbind(1)[0])

    assert kept(sliced) == kept(narrowed) == kept(unbound)


def test_an_array_has_one_gradient_however_often_it_is_taken() -> None:
    def estimate(times: int) -> Estimate:
        def forward(s: Any, x: Tensor) -> Any:
            x = s.a(x)
            for _ in range(times):
                x = functional.linear(x, s.weight)
            return s.h(x)

        parts = {"a": linear(6, 200), "weight": lambda: nn.Parameter(torch.zeros(200, 200)), "h": linear(200, 3)}
        found = plan(module(forward, **parts), 6)
        return memory_to_train(found, prefix(found.anatomy, 1.0, "floor"), Training(batch=1, lr=0.01))

    assert estimate(8).total - estimate(1).total < 200 * 200 * 4


class Blurred(nn.Module):
    """A convolution by a tensor that is no array of the state, and a shift by another."""

    kernel: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Conv2d(3, 8, 1), nn.Linear(8, 3)
        self.register_buffer("kernel", torch.ones(8, 8, 3, 3), persistent=False)
        self.register_buffer("shift", torch.ones(8, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(self.a(x), self.kernel) * self.shift
        return cast(Tensor, self.h(x.mean((2, 3))))


@pytest.mark.parametrize("private", [False, True])
def test_tensors_outside_the_state_are_no_arrays_of_a_step(private: bool) -> None:
    found = plan(Blurred, 3, 8, 8)
    part = prefix(found.anatomy, 0.5, "floor")
    assert [step.arrays for step in found.steps if step.kind in ("conv2d", "mul")] == [(), ()]
    kept = memory_to_train(found, part, Training(batch=8), private=private).activations
    assert kept >= 8 * 4 * (3 * 64 + 4 * 64 + 4 * 36 + 4)


def attending(s: Any, x: Tensor) -> Any:
    q, k, v = (part(x) for part in (s.q, s.k, s.v))
    return s.h((torch.softmax(q @ k.transpose(1, 2), -1) @ v).mean(1))


def fused(s: Any, x: Tensor) -> Any:
    return s.h(functional.scaled_dot_product_attention(s.q(x), s.k(x), s.v(x)).mean(1))


def queried(s: Any, x: Tensor) -> Any:
    """Learned queries of shape (1, 4, 8) attend to all tokens, of shape (n, 5, 8)."""
    x = s.a(x)
    return s.h((torch.softmax(s.queries @ x.transpose(1, 2), -1) @ x).mean(1))


def weighed(s: Any, x: Tensor) -> Any:
    """Products with parameters."""
    return torch.relu(x @ s.w) @ s.v


def pooled_by_attention(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    return s.h(s.attention(x[:, :2], x, x)[0].mean(1))


def centred(s: Any, x: Tensor) -> Any:
    return s.h(functional.linear(x, s.w - s.w.mean(1, keepdim=True)))


def normalised(s: Any, x: Tensor) -> Any:
    return s.h(functional.layer_norm(s.a(x), s.norm.normalized_shape, s.norm.weight, s.norm.bias))


def parameter(*shape: int) -> Any:
    return lambda: nn.Parameter(torch.zeros(shape))


COSTS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "learned queries": (module(queried, a=linear(6, 8), queries=parameter(1, 4, 8), h=linear(8, 3)), (5, 6),
                        5 * 6 * 8 + 2 * 4 * 5 * 8 + 8 * 3),
    "parameters": (module(weighed, w=parameter(6, 8), v=parameter(8, 3)), (6,), 6 * 8 + 8 * 3),
    "fewer queries than keys": (module(
        pooled_by_attention, a=linear(6, 8), attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        h=linear(8, 3)), (5, 6), 5 * 6 * 8 + (2 + 5 + 5 + 2) * 64 + 2 * 2 * 5 * 8 + 8 * 3),
    "functional layer norm": (module(
        normalised, a=linear(6, 8), norm=lambda: nn.LayerNorm(8), h=linear(8, 3)), (6,), 6 * 8 + 4 * 8 + 8 * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_operations_counted_by_hand(name: str) -> None:
    build, shape, flops = COSTS[name]
    found = plan(build, *shape)
    assert cost_of(found, prefix(found.anatomy, 1.0, "floor")).flops == flops


def test_what_is_made_of_parameters_alone_does_not_grow_with_the_batch() -> None:
    def estimate(batch: int) -> int:
        found = plan(module(centred, w=parameter(400, 300), h=linear(400, 3)), 300)
        return memory_to_train(found, prefix(found.anatomy, 1.0, "floor"), Training(batch=batch)).activations

    assert estimate(32) - estimate(16) < 16 * 4 * 4 * 1000


@pytest.mark.parametrize("forward", [attending, fused])
def test_attention_that_is_written_out_is_costed(forward: Any) -> None:
    found = plan(module(forward, q=linear(6, 8), k=linear(6, 8), v=linear(6, 8), h=linear(8, 3)), 5, 6)
    assert cost_of(found, prefix(found.anatomy, 1.0, "floor")).flops == 3 * 5 * 6 * 8 + 2 * 5 * 5 * 8 + 8 * 3
