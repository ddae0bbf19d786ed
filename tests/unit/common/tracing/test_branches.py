"""Sub-models that run the model's own code take the same branches as the whole model, or are refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.user_modules import Build, linear, module
from torch import Tensor, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.trace import blueprint_for

X = np.zeros((1, 6), np.float32)
PARTS = {"a": linear(6, 8), "b": linear(8, 8), "c": linear(8, 8), "h": linear(8, 3)}
DECISIONS: dict[str, Callable[[Any], Any]] = {
    "int": lambda layer: int(layer.out_features) >= 8,
    "a function of math": lambda layer: math.log2(layer.out_features) >= 3,
    "bits": lambda layer: layer.out_features & 8,
    "shift": lambda layer: layer.out_features >> 3,
    "divmod": lambda layer: divmod(layer.out_features, 8)[0],
    "abs": lambda layer: abs(layer.out_features - 2) >= 6,
    "round": lambda layer: round(layer.out_features / 4) >= 2,
    "str": lambda layer: str(layer.out_features) == "8",
    "format": lambda layer: f"{layer.out_features}" == "8",
    "len of a range": lambda layer: len(range(layer.out_features)) >= 8,
    "index": lambda layer: ((0,) * 8 + (1,))[layer.out_features],
    "parameters": lambda layer: sum(p.numel() for p in layer.parameters()) >= 56,
    "state": lambda layer: layer.state_dict()["bias"].numel() >= 8,
}


def check(build: Build, rate: float = 0.5) -> None:
    plan = blueprint_for(build, X)
    assert plan.passes == {}
    check_cut(build, plan, X, prefix(plan.anatomy, rate, "floor"))


@pytest.mark.parametrize("name", DECISIONS)
def test_a_sub_model_that_takes_another_branch_is_refused(name: str) -> None:
    def forward(s: Any, x: Tensor) -> Any:
        x = s.a(x)
        if DECISIONS[name](s.a):
            x = s.b(x)
        return s.h(s.c(x))

    with pytest.raises(
        UncuttableModelError,
        match=r"sub-model with 12 of 24 channels leaves out 'b' \(line \d+ of test_branches.py: `x = s.b\(x\)`\), "
        "which the whole model runs, because forward decides by a size .*; decide in __init__, compare the size itself",
    ):
        check(module(forward, **PARTS))


def swapping(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    return s.h((s.b if int(s.a.out_features) >= 8 else s.c)(x) + s.b(s.c(x)))


def adding_in_evaluation(s: Any, x: Tensor) -> Any:
    x = s.c(s.b(s.a(x)))
    return s.h(x if s.training or int(s.a.out_features) >= 8 else x.tanh())


def taking_another_input(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    y = s.b(x)
    return s.h(s.c(y if int(s.a.out_features) >= 8 else x) + y)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (swapping, r"runs 'c' \(.*\) where the whole model runs 'b' \("),
        (adding_in_evaluation, r"runs 'tanh' \(line .*\), which the whole model does not run there"),
        (taking_another_input, r"runs 'c' \(.*\) where the whole model runs 'c' \("),
    ],
)
def test_so_is_one_that_takes_other_steps_or_other_inputs(forward: Any, words: str) -> None:
    with pytest.raises(UncuttableModelError, match=words):
        check(module(forward, **PARTS))


def looping(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    for place in range(s.a.out_features // 2):
        x = x + s.more[place](x * torch.ones(1)).relu()
    return s.h(s.b(x) * torch.ones(1))


LOOPING = module(looping, **PARTS, more=lambda: nn.ModuleList(nn.Linear(8, 8) for _ in range(4)))


@pytest.mark.parametrize("rate", [0.75, 0.5, 0.25])
def test_a_loop_over_a_size_may_take_fewer_turns(rate: float) -> None:
    check(LOOPING, rate)


def test_a_loop_takes_one_turn_at_least() -> None:
    """Otherwise it is like a branch that a sub-model does not take."""
    with pytest.raises(UncuttableModelError, match=r"with 2 of 16 channels leaves out .* which the whole model runs"):
        check(LOOPING, 0.125)


def scaling(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    x = x * int(s.a.out_features) ** -0.5 + torch.zeros(s.a.out_features)
    return s.h(s.b(x).view(x.shape[0], -1))


def test_numbers_that_forward_computes_may_differ() -> None:
    check(module(scaling, **PARTS))


@pytest.mark.parametrize("limit", [0.2, 0.4, 0.6, 0.8])
def test_a_drawn_decision_is_no_branch_by_a_size(limit: float) -> None:
    def forward(s: Any, x: Tensor) -> Any:
        x = s.a(x)
        keeps = not s.training or torch.rand(s.a.out_features)[-1].item() > limit
        return s.h(x + s.b(x) if keeps else x)

    check(module(forward, **PARTS))


def test_a_decision_by_a_generator_of_the_file_is_no_branch_by_a_size() -> None:
    numbers = random.Random(0)

    def forward(s: Any, x: Tensor) -> Any:
        x = s.a(x)
        return s.h(x + s.b(x) if numbers.random() > 0.5 else s.b(x) - x)

    check(module(forward, **PARTS))


def attending(s: Any, x: Tensor) -> Any:
    mask, x = x[:1, :1], s.a(x)[:, None]
    x = s.c(s.b(s.attention(x, x, x, attn_mask=mask)[0][:, 0]))
    return s.h(x.tanh() if int(s.a.out_features) >= 8 else x.relu())


def test_branches_are_compared_beside_an_attention_that_cannot_be_traced() -> None:
    with pytest.raises(UncuttableModelError, match="runs 'relu'"):
        check(module(attending, **PARTS, attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True)))
