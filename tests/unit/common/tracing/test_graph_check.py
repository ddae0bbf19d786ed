"""A traced graph that would not compute what the model's own code does is refused before sub-models run it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import lookalikes
from tests.support.cut_models import ALL, WORDS
from tests.support.user_modules import linear, module
from tests.support.wrapped import stochastic_depth
from torch import Tensor, nn
from torch.nn import functional

from fedquilt_common.errors import ExperimentError, UncuttableModelError
from fedquilt_common.tracing.generators import read_generators
from fedquilt_common.tracing.graph_check import check_graph
from fedquilt_common.tracing.trace import blueprint_for

X = np.zeros((1, 6), np.float32)
PARTS = {"a": linear(6, 8), "b": linear(8, 8), "h": linear(8, 3)}


class Sign(torch.autograd.Function):
    """The sign, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def frozen(s: Any, x: Tensor) -> Any:
    with torch.no_grad():
        return torch.relu(s.a(x))


def signed(s: Any, x: Tensor) -> Any:
    return Sign.apply(s.a(x))  # type: ignore[no-untyped-call]


def centred(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    return x - x.mean(1, keepdim=True) if isinstance(x, Tensor) else x


def warmed_up(s: Any, x: Tensor) -> Any:
    s.steps = getattr(s, "steps", 0) + 1
    return s.a(x) * min(1.0, s.steps / 10)


def drawing(s: Any, x: Tensor) -> Any:
    return s.a(x) * s.numbers.random() if s.training else s.a(x)


def branching(s: Any, x: Tensor) -> Any:
    return s.a(x) if torch.is_grad_enabled() else 3 * s.a(x)


MISSED: dict[str, tuple[Any, str]] = {
    "no_grad": (frozen, "the gradient of 'a.weight' is another one"),
    "a gradient of its own": (signed, "the gradient of 'a.weight' is another one"),
    "isinstance": (centred, "the model has another output in training"),
    "state": (warmed_up, "the model has another output in training"),
    "a generator": (drawing, "the model has another output in training"),
    "the mode of gradients": (branching, "the model has another output in evaluation"),
}


def written(first: Any) -> Any:
    return module(lambda s, x: s.h(s.b(first(s, x).view(-1, 8))), **PARTS, numbers=lambda: random.Random(3))


@pytest.mark.parametrize("name", MISSED)
def test_what_the_graph_misses_is_refused_with_what_differs(name: str) -> None:
    first, difference = MISSED[name]
    build = written(first)
    advice = r"x.view\(n, x.shape\[1\]\) or x.flatten\(1\), so that sub-models run forward itself"
    with pytest.raises(UncuttableModelError, match=f"but in the graph {difference}.*{advice}"):
        check_graph(build, blueprint_for(build, X), X)


@pytest.mark.parametrize("name", MISSED)
def test_sub_models_that_run_forward_itself_miss_nothing(name: str) -> None:
    build = module(lambda s, x: s.h(s.b(MISSED[name][0](s, x).flatten(1))), **PARTS, numbers=lambda: random.Random(3))
    plan = blueprint_for(build, X)
    assert not plan.passes
    check_graph(build, plan, X)


def random_in_training(s: Any, x: Tensor) -> Any:
    x = s.norm(torch.relu(s.a(x.clone().add_(1))).view(-1, 8))
    x = x + stochastic_depth(s.drop(s.b(x)), 0.5, "row", s.training)
    noisy = x + 0.5 * torch.randn_like(x) if s.training else x
    return s.h(noisy), s.h(functional.dropout(lookalikes.stochastic_depth(x, 0.5, "row", s.training), 0.3, s.training))


def test_the_graph_draws_what_forward_draws() -> None:
    build = module(random_in_training, **PARTS, norm=lambda: nn.BatchNorm1d(8), drop=lambda: nn.Dropout(0.4))
    plan, before = blueprint_for(build, X), read_generators()
    assert plan.passes
    check_graph(build, plan, X)
    assert read_generators() == before


def test_branches_behind_parameters_of_zero_are_compared() -> None:
    build = module(lambda s, x: s.h(s.a(x).view(-1, 8) + s.gain * frozen(s, x)), **PARTS,
                   gain=lambda: nn.Parameter(torch.zeros(8)))  # fmt: skip
    with pytest.raises(UncuttableModelError, match="in the graph the gradient of 'a"):
        check_graph(build, blueprint_for(build, X), X)


def counting(s: Any, x: Tensor) -> Any:
    if isinstance(x, Tensor):
        s.seen.add_(1)
    return s.a(x)


def test_buffers_are_compared() -> None:
    build = module(lambda s, x: s.h(s.b(counting(s, x).view(-1, 8))), **PARTS, seen=lambda: torch.zeros(3))
    with pytest.raises(UncuttableModelError, match="in the graph the buffer 'seen' is another one after training"):
        check_graph(build, blueprint_for(build, X), X)


def late(s: Any, x: Tensor) -> Any:
    """Only the last output of the last sample differs in the graph."""
    y = s.h(s.a(x).view(-1, 8))
    return torch.cat([y.flatten()[:-1], 2 * y.flatten()[-1:]]) if isinstance(x, Tensor) else y.flatten()


def test_all_blocks_of_a_tensor_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt_common.tracing.graph_check._BLOCK", 2)
    build = module(late, **PARTS)
    with pytest.raises(UncuttableModelError, match="another output in training"):
        check_graph(build, blueprint_for(build, X), X)


def test_a_model_that_refuses_the_samples_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    def forward(s: Any, x: Tensor) -> Any:
        torch._assert(x.shape[0] < 3, "two samples at most")  # type: ignore[no-untyped-call]
        return s.h(frozen(s, x).view(-1, 8))

    build = module(forward, **PARTS)
    check_graph(build, blueprint_for(build, X), X)
    assert "forward raises AssertionError('two samples at most')" in caplog.text


@pytest.mark.parametrize("name", ALL)
def test_models_that_are_understood_pass(name: str) -> None:
    build, shape = ALL[name]
    x = np.ones((2, *shape), np.int64 if shape == WORDS else np.float32)
    check_graph(build, blueprint_for(build, x), x)


def test_a_forward_that_ends_the_program_is_an_error() -> None:
    leaving = lambda s, x: s.h(s.a(x).view(-1, 8)) if not isinstance(x, Tensor) else exit()  # noqa: E731
    build = module(leaving, **PARTS)
    plan = blueprint_for(module(lambda s, x: s.h(s.a(x).view(-1, 8)), **PARTS), X)
    with pytest.raises(ExperimentError, match="the model's forward"):
        check_graph(build, plan, X)
