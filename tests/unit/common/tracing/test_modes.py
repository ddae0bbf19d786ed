"""Models whose forward differs between training and evaluation, draws random numbers, or takes sizes from shapes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import lookalikes
from tests.support.user_modules import Build, linear, module
from torch import Tensor

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.cost import cost_of
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.size_decisions import watch_sizes
from fedquilt_common.tracing.trace import Blueprint, blueprint_for

X = np.zeros((1, 6), np.float32)
PARTS = {"a": linear(6, 8), "b": linear(8, 8), "h": linear(8, 3)}


def checked(build: Build, x: Any = X) -> Blueprint:
    plan = blueprint_for(build, x)
    check_cut(build, plan, x)
    return plan


def test_a_layer_that_training_leaves_out_at_random_is_cut() -> None:
    plan = checked(lookalikes.Sometimes, np.zeros((1, 3, 6, 6), np.float32))
    assert {name: len(a.axes[0]) for name, a in plan.anatomy.arrays.items() if name.endswith("weight")} == {
        "a.weight": 1, "b.weight": 1, "c.weight": 2, "fc.weight": 1
    }  # fmt: skip
    assert plan.anatomy.arrays["b.weight"].axes[0][0].group == 0


def skipping(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    n, channels = x.shape
    x = x.view(n, channels)
    if not s.training or torch.rand(1).item() > 0.7:
        x = x + s.b(x)
    return s.h(x)


def test_sizes_from_shapes_are_those_of_the_sub_model() -> None:
    plan = checked(module(skipping, **PARTS))
    assert plan.passes == {}
    assert [(group.name, group.size) for group in plan.anatomy.groups] == [("a", 8)]


def test_layers_that_training_leaves_out_are_costed() -> None:
    plan = checked(module(skipping, **PARTS))
    assert cost_of(plan, full_slice(plan.anatomy)).flops == 6 * 8 + 8 * 8 + 8 * 3


def keeping(s: Any, x: Tensor) -> Any:
    x = s.a(x).view(-1, 8)
    if not s.training or torch.rand(1).item() > 0.3:
        x = x + s.b(x)
    return s.h(x)


def drawing(s: Any, x: Tensor) -> Any:
    x = s.a(x).view(-1, 8)
    return s.h(x + torch.randn(1) if s.training else x)


def deciding(s: Any, x: Tensor) -> Any:
    x = s.a(x).view(-1, 8)
    return s.h(s.b(x) if random.random() > 0.1 else s.b(s.b(x)))


def choosing(s: Any, x: Tensor) -> Any:
    x = s.a(x).view(-1, 8)
    return s.h(s.b(x) if np.random.rand() > 0.1 else s.b(s.b(x)))


@pytest.mark.parametrize("forward", [keeping, drawing, deciding, choosing])
def test_what_is_drawn_while_tracing_is_not_frozen_into_sub_models(forward: Any) -> None:
    with pytest.raises(UncuttableModelError, match=r"training draws random numbers.*and forward contains sizes"):
        blueprint_for(module(forward, **PARTS), X)


def switched(s: Any, x: Tensor, features: bool = False, *more: Any, scale: Any = None, **options: Any) -> Any:
    x = s.b(s.a(x))
    if features or more or scale is not None or options:
        return x
    return s.h(x)


def test_other_arguments_of_forward_have_their_defaults() -> None:
    plan = checked(module(switched, **PARTS))
    assert [(group.name, group.size) for group in plan.anatomy.groups] == [("a", 8), ("b", 8)]


def adding(s: Any, x: Tensor) -> Any:
    total = torch.zeros(1)
    total += x.mean()
    return s.h(s.b(s.a(x).view(-1, 8)) * total)


def test_a_tensor_that_forward_creates_and_changes_is_not_kept_by_sub_models() -> None:
    with pytest.raises(UncuttableModelError, match="training changes a tensor that it creates, and forward contains"):
        blueprint_for(module(adding, **PARTS), X)


def counting(s: Any, x: Tensor) -> Any:
    s.steps += 1
    return s.h(s.b(s.a(x)))


def looping(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    for scale in s.scales.tolist():
        x = x * scale
    return s.h(s.b(x))


BUFFERS = {"scales": lambda: torch.ones(3), "steps": lambda: torch.zeros(2)}


@pytest.mark.parametrize("forward", [counting, looping])
def test_a_forward_that_reads_or_assigns_buffers_runs_its_own_code(forward: Any) -> None:
    plan = checked(module(forward, **PARTS, **BUFFERS))
    assert plan.passes == {}
    assert [group.size for group in plan.anatomy.groups] == [8, 8]


def test_numbers_of_buffers_are_not_frozen_into_sub_models() -> None:
    forward = lambda s, x: looping(s, x.view(-1, 6)) + s.a(x).view(-1, 8)[:, :1]  # noqa: E731
    with pytest.raises(UncuttableModelError, match="training reads or assigns the numbers of a buffer, and forward"):
        blueprint_for(module(forward, **PARTS, **BUFFERS), X)


def asserting(s: Any, x: Tensor) -> Any:
    assert s.a.out_features / 2 > 1
    return s.h(s.b(s.a(x)) if not s.training or torch.rand(1).item() > 0.7 else s.a(x))


def test_a_decision_by_a_size_beside_drawn_numbers_is_named() -> None:
    with pytest.raises(UncuttableModelError, match=r"forward decides by a\.out_features; decide in __init__"):
        blueprint_for(module(asserting, **PARTS), X)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_of_a_block_is_not_left_out_by_sub_models(register: str) -> None:
    def hooked() -> Any:
        block = torch.nn.Sequential(torch.nn.Linear(8, 8))
        getattr(block, register)(lambda *given: None)
        return block

    checked(module(lambda s, x: s.h(s.block(s.a(x))), **PARTS, block=hooked))
    with pytest.raises(UncuttableModelError, match=r"training runs the backward hook of 'block', and forward contains"):
        blueprint_for(module(lambda s, x: s.h(s.block(s.a(x)).view(-1, 8)), **PARTS, block=hooked), X)


def checking(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    return s.h(s.b(x * s.gates if isinstance(s.gates, Tensor) else x))


def test_a_buffer_is_a_tensor_while_forward_is_traced() -> None:
    plan = checked(module(checking, **PARTS, gates=lambda: torch.ones(8)))
    assert plan.anatomy.arrays["gates"].axes == plan.anatomy.arrays["a.bias"].axes


@pytest.mark.parametrize(
    "decide",
    [
        lambda size: size**0.5 > 3, lambda size: size * 2.0 != 16, lambda size: max(size // 3, 1),
        lambda size: not size, lambda size: 1 - size / 4 < 0, lambda size: size in (8, 16), lambda size: -size == 8,
    ],
)  # fmt: skip
def test_decisions_by_a_size_are_noticed(decide: Any) -> None:
    layer = torch.nn.Linear(6, 8)
    with watch_sizes(layer, [("", "out_features")]) as compared:
        decide(layer.out_features)
    assert compared == {("", "out_features")}


def test_watched_sizes_are_put_back() -> None:
    inner, outer = torch.nn.Linear(6, 8), torch.nn.Unflatten(1, (4, 2))
    keys = [("0", "out_features"), ("1", "unflattened_size")]
    with pytest.raises(ZeroDivisionError), watch_sizes(torch.nn.Sequential(inner, outer), keys) as compared:
        print(inner.out_features // 2 > 3, inner.out_features / 0)
    assert compared == {keys[0]}
    assert (inner.out_features, outer.unflattened_size) == (8, (4, 2))
    assert type(inner.out_features) is int


def sometimes(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    if not s.training or random.random() > 0.5 or np.random.rand() > 0.9:
        x = s.b(torch.relu(x))
    return s.h(x)


def test_the_graph_is_the_same_whatever_was_drawn_before() -> None:
    found = set()
    for seed in range(4):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        expected = random.Random(seed).random(), np.random.RandomState(seed).rand()
        plan = blueprint_for(module(sometimes, **PARTS), X)
        found.add(tuple(step.name for step in plan.steps))
        assert (random.random(), np.random.rand()) == expected
    assert len(found) == 1
