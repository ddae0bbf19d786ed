"""Models that cannot be cut are refused, with the place and the reason."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import lookalikes, renamed_layers
from tests.support.user_modules import Build, linear, module
from tests.support.wrapped import Wrapping
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from fedquilt_common.algorithms.heterofl import HeteroFL
from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.trace import blueprint_for


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else x


class Counting(nn.Module):
    """Counts the samples that it has seen: with ``always`` in evaluation, too."""

    seen: Tensor

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.inner, self.always = nn.Linear(6, 5), always
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.always:
            self.seen += x.shape[0]
        out: Tensor = self.inner(x)
        return out


def two_arguments(s: Any, x: Tensor, y: Tensor) -> Any:
    return s.a(x + y)


def old_weight_norm(layer: nn.Linear) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # new versions of torch advise against it
        return nn.utils.weight_norm(layer)


def hooked(register: str) -> nn.Linear:
    layer = nn.Linear(6, 5)
    getattr(layer.weight, register)(lambda *given: None)
    return layer


HOOKED = r"'a\.weight' has a gradient hook.*; freeze a parameter with requires_grad_\(False\), multiply it by a mask"
COMPUTED = r"'a': its weight is computed in each pass, as by weight_norm"
REFUSED: dict[str, tuple[Build, str]] = {
    "an unknown layer": (module(lambda s, x: s.inner(x, x), inner=lambda: nn.Bilinear(6, 6, 5)), "'inner'.*Bilinear"),
    "repetitions of all numbers": (
        module(lambda s, x: s.a(x.repeat_interleave(2)), a=linear(24, 5)),
        r"repeat_interleave\(\) without a dimension"),
    "repetitions with a written size": (
        module(lambda s, x: s.a(x.repeat_interleave(2, 1, output_size=12)), a=linear(12, 5)), "or an output_size"),
    "a changed layer": (
        module(lambda s, x: s.a(x), a=lambda: renamed_layers.ActiveNorm(6)),
        "'a' cannot be traced.*; ActiveNorm changes the forward of BatchNorm1d: let it hold that layer as a part, or"),
    "a branch": (module(lambda s, x: s.part(x), part=Branching), r"'part' cannot be traced \(line \d+ of test_refus"),
    "an assigned buffer": (
        module(lambda s, x: s.part(x), part=lambda: Counting(always=True)),
        "forward of Counting assigns a new value to the buffer 'seen'"),
    "an unknown function": (module(lambda s, x: torch.fft.rfft(s.a(x)).real, a=linear(6, 5)), "fft_rfft|real"),
    "two inputs": (module(two_arguments, a=linear(6, 5)), "second argument"),
    "a bilinear form": (module(lambda s, x: torch.einsum("bi,ji->bj", s.a(x), s.a.weight), a=linear(6, 6)), "einsum"),
    "the wrong shape": (module(lambda s, x: s.a(x), a=linear(7, 5)), "'a'.*does not run"),
    "a grouped convolution as a function": (module(
        lambda s, x: functional.conv1d(s.a(x), s.w, groups=2), a=lambda: nn.Unflatten(1, (2, 3)),
        w=lambda: nn.Parameter(torch.zeros(2, 1, 1))), "with groups; use a layer"),
    "a layer that is left out beside sizes": (
        module(lambda s, x: s.part(x[:, None, None].expand(-1, 3, 1, -1)), part=lambda: lookalikes.Sometimes(True)),
        "training leaves 'part.b.bias' out"),
    "a wrapped function": (lambda: Wrapping(windows=True), r"shifted_window_attention\(\)"),
    "a weight that hooks compute": (module(lambda s, x: s.a(x), a=lambda: old_weight_norm(nn.Linear(6, 5))), COMPUTED),
    "a weight that is parametrized": (
        module(lambda s, x: s.a(x), a=lambda: parametrizations.weight_norm(nn.Linear(6, 5))), COMPUTED),
    "a gradient hook": (module(lambda s, x: s.a(x), a=lambda: hooked("register_hook")), HOOKED),
    "a hook after the gradient": (
        module(lambda s, x: s.a(x), a=lambda: hooked("register_post_accumulate_grad_hook")), HOOKED),
    "a row by its number": (module(lambda s, x: s.a(x).select(1, 0), a=linear(6, 5)), r"select\(\)"),
    "indexing by a list": (module(lambda s, x: s.a(x)[:, [0, 2]], a=linear(6, 5)), "list"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_by_name_and_reason(name: str) -> None:
    build, words = REFUSED[name]
    with pytest.raises(UncuttableModelError, match=words):
        blueprint_for(build, np.zeros((1, 6), np.float32))


def test_a_buffer_that_only_training_assigns_is_no_obstacle() -> None:
    """The model is followed in evaluation."""
    build = module(lambda s, x: s.b(s.a(x)), a=lambda: Counting(always=False), b=linear(5, 4))
    blueprint = blueprint_for(build, np.zeros((1, 6), np.float32))
    assert [group.size for group in blueprint.anatomy.groups] == [5]
    assert blueprint.anatomy.arrays["a.seen"].shape == ()


def checking(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    torch._assert(x.shape[1] == 8, "there must be 8 features")  # type: ignore[no-untyped-call]
    return s.head(x)


def only_two_samples(s: Any, x: Tensor) -> Any:
    """Run on as many samples as the model was traced with."""
    return s.head(s.a(x).reshape(2, 8))


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (checking, "does not run: .* in or after '.*there must be 8 features"),
        (only_two_samples, "does not run: .*shape"),
    ],
)
def test_a_sub_model_that_does_not_run_is_refused_before_the_run(forward: Any, words: str) -> None:
    build, x = module(forward, a=linear(6, 8), head=linear(8, 5)), np.zeros((1, 6), np.float32)
    with pytest.raises(UncuttableModelError, match=f"its sub-model with 4 of 8 channels {words}"):
        check_cut(build, blueprint_for(build, x), x)


def test_so_is_one_of_which_only_the_narrowest_sub_model_does_not_run() -> None:
    """As in attention with more heads than the sub-model has channels."""

    def scaled(s: Any, x: Tensor) -> Any:
        x = s.a(x)
        return s.head(x * (x.shape[1] // 4) ** -0.5)

    build, x = module(scaled, a=linear(6, 8), head=linear(8, 5)), np.zeros((1, 6), np.float32)
    blueprint = blueprint_for(build, x)
    check_cut(build, blueprint, x)
    check_cut(build, blueprint, x, *HeteroFL({"strong": 1.0, "medium": 0.5}).parts_to_try(blueprint.anatomy))
    with pytest.raises(UncuttableModelError, match=r"its sub-model with 2 of 8 channels does not run: ZeroDivision"):
        check_cut(build, blueprint, x, *HeteroFL({"strong": 1.0, "weak": 0.25}).parts_to_try(blueprint.anatomy))
