"""Parameters change together as long as they take one MiB at most, and may share a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.training.optimisers import Optimiser, joint_steps
from fedquilt_common.training.precision import LossScale

MIB = 1 << 18
"""Numbers of fp32 in a MiB."""


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ([], []),
        ([1, 2, 3], [[0, 1, 2]]),
        ([MIB, 1], [[0], [1]]),
        ([1, 3 * MIB, 1, 1], [[0], [1], [2, 3]]),
        ([MIB // 2, MIB // 2, MIB // 2], [[0, 1], [2]]),
    ],
)
def test_a_joint_step_takes_a_mebibyte(sizes: list[int], together: list[list[int]]) -> None:
    tensors = [torch.empty(size) for size in sizes]
    steps = list(joint_steps([(index, one, one) for index, one in enumerate(tensors)]))
    assert [list(step.indices) for step in steps] == together
    assert all(one is tensors[i] for step in steps for i, one in zip(step.indices, step.parameters, strict=True))


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"optimiser": "adam"}])
@pytest.mark.parametrize("scaled", [False, True])
def test_parameters_may_share_a_gradient(options: dict[str, Any], scaled: bool) -> None:
    found, expected = (train(shares, options, scaled) for shares in (True, False))
    assert found == expected


def train(shares: bool, options: dict[str, Any], scaled: bool) -> list[list[float]]:
    """Take three steps; with ``shares``, autograd gives both parameters the same gradient, else a copy to each."""
    first, second = (nn.Parameter(torch.tensor([0.5, 1.5, -1.0]) * (1 + place)) for place in range(2))
    optimiser = Optimiser([first, second], Training(lr=0.1, **options), LossScale() if scaled else None)
    for step in range(3):
        optimiser.step(loss_of(first, second, shares, step))
        assert first.grad is not None
        assert second.grad is not None
        assert (first.grad.data_ptr() == second.grad.data_ptr()) is shares
    return [first.tolist(), second.tolist()]


def loss_of(first: Tensor, second: Tensor, shares: bool, step: int) -> Tensor:
    sums = first.unsqueeze(0) + (second if shares else second * 1.0).unsqueeze(0)
    return ((step + 1) * sums).square().sum()


@pytest.mark.parametrize("options", [{"optimiser": "adam"}, {"optimiser": "rmsprop"}, {"momentum": 0.9}])
def test_steps_are_counted_for_each_parameter_as_torch_does(options: dict[str, Any]) -> None:
    """One of two layers has a gradient in each third step only, as with stochastic depth; and the optimiser is kept."""
    torch.manual_seed(5)
    mine = [nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
    theirs = [nn.Parameter(one.detach().clone()) for one in mine]
    kinds = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    other = kinds.get(options.get("optimiser", ""), torch.optim.SGD)(theirs, lr=0.01, **momentum_of(options))
    ours = Optimiser(mine, Training(lr=0.01, **options))
    for step in range(9):
        if step == 4:
            kept, ours = ours.state("ab"), Optimiser(mine, Training(lr=0.01, **options))
            ours.load("ab", kept)
        x = torch.randn(4, 3)
        ours.step(loss_of_layers(mine, x, both=step % 3 == 2))
        other.zero_grad()
        loss_of_layers(theirs, x, both=step % 3 == 2).backward()  # type: ignore[no-untyped-call]
        other.step()
    assert all(torch.equal(one, two) for one, two in zip(mine, theirs, strict=True))


def momentum_of(options: dict[str, Any]) -> dict[str, float]:
    return {"momentum": options["momentum"]} if "momentum" in options else {}


def loss_of_layers(layers: list[nn.Parameter], x: Tensor, both: bool) -> Tensor:
    hidden = x @ layers[0]
    return (hidden @ layers[1] if both else hidden).square().mean()


def test_a_gradient_of_one_number_is_divided_by_the_scale_once() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.tensor(3.0 * 65536).expand(4)
    Optimiser([parameter], Training(lr=1.0), LossScale()).update()
    assert parameter.tolist() == [-3.0] * 4
