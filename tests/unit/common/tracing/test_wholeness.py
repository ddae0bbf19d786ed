"""What of a model stays whole in every sub-model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import lookalike_transformers
from tests.support.user_modules import Build, linear, module
from torch import Tensor, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.submodels.slices import Anatomy
from fedquilt_common.submodels.wholeness import describe_whole, require_groups, whole_share
from fedquilt_common.tracing.trace import blueprint_for

IMAGE = (3, 6, 6)


def anatomy(build: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE) -> Anatomy:
    return blueprint_for(build, np.zeros((1, *shape), np.float32)).anatomy


class Reflected(nn.Module):
    """Channels that are padded by their neighbours stay whole, and with them all others here."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc, self.unused = nn.Conv2d(3, 6, 1), nn.Linear(8, 5), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(self.a(x).movedim(1, 3), (1, 1, 0, 0), "circular")
        out: Tensor = self.fc(x.mean((1, 2)))
        return out


def test_a_model_that_is_not_cut_is_refused_with_the_place() -> None:
    found = anatomy(Reflected)
    assert found.groups == ()
    assert whole_share(found) == 1.0
    assert describe_whole(found)["a.weight"] == "not cut: 'pad' cannot be cut there"
    assert describe_whole(found)["unused.weight"] == "not cut: the forward pass does not use it"
    with pytest.raises(UncuttableModelError, match=r"no channels that can be cut.*a\.weight.*'pad'.*fedavg"):
        require_groups(found)


class Shuffled(nn.Module):
    """Grouped convolutions on both sides of a channel shuffle: each channel meets all others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1, groups=4), nn.Linear(16, 5)
        self.c = nn.Conv2d(16, 16, 1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        n, channels, height, width = x.shape
        x = x.view(n, 4, channels // 4, height, width).transpose(1, 2).reshape(n, channels, height, width)
        out: Tensor = self.fc(self.c(x).mean((2, 3)))
        return out


def test_channels_that_only_go_together_are_listed() -> None:
    whole = describe_whole(anatomy(Shuffled))
    assert {name.partition(".")[0] for name in whole} == {"a", "b", "c", "fc"}
    assert all("its channels only go together" in reason for reason in whole.values())


def test_the_share_counts_what_no_width_changes() -> None:
    found = anatomy(lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5)), (6,))
    assert whole_share(found) == 5 / (6 * 4 + 4 + 4 * 5 + 5)  # the classifier's bias
    assert describe_whole(found) == {}
    require_groups(found)


def test_the_models_outputs_are_not_listed_whatever_follows_them() -> None:
    found = anatomy(lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5), nn.LogSoftmax(1)), (6,))
    assert describe_whole(found) == {}


@pytest.mark.parametrize("groups", [2, 6])
def test_grouped_convolutions_are_cut_and_reported_so(groups: int) -> None:
    found = anatomy(
        lambda: nn.Sequential(
            nn.Conv2d(3, 12, 1), nn.Conv2d(12, 24, 1, groups=groups), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(24, 5),
        )
    )  # fmt: skip
    assert describe_whole(found) == {}


def test_rows_that_are_looked_up_are_the_only_ones_that_stay() -> None:
    found = anatomy(lookalike_transformers.swin)
    assert describe_whole(found)["2.table"].startswith("not cut: 'getitem")
    tied = blueprint_for(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 5)),
                         np.zeros((1, 3), np.int64)).anatomy  # fmt: skip
    assert describe_whole(tied) == {"0.weight": "cut only in dimension 1: '0' looks its rows up by number"}


Numbers = Callable[[Tensor], Any]


def numbered(choose: Numbers) -> Build:
    """Look rows up by what ``choose`` returns of eight channels."""
    return module(
        lambda s, x: s.head(s.rows(choose(s.a(x)))), a=linear(6, 8), rows=lambda: nn.Embedding(8, 4), head=linear(4, 5)
    )


def second_of_min(x: Tensor) -> Any:
    _, numbers = torch.min(x, 1)
    return numbers


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x.max(1)[1], lambda x: x.min(dim=-1).indices, lambda x: torch.max(input=x, dim=1)[1] * 1,
        second_of_min, lambda x: x.argmin(1),
    ],
)  # fmt: skip
def test_channels_whose_numbers_are_used_stay_whole(choose: Numbers) -> None:
    found = anatomy(numbered(choose), (6,))
    assert [group.name for group in found.groups] == ["rows"]
    assert re.match("not cut: '(max|min|argmin)(_1)?' cannot be cut there", describe_whole(found)["a.weight"])


def test_channels_whose_numbers_are_an_output_stay_whole() -> None:
    found = anatomy(module(lambda s, x: s.b(s.a(x)).max(1), a=linear(6, 8), b=linear(8, 7)), (6,))
    assert [group.name for group in found.groups] == ["a"]


def largest(s: Any, x: Tensor) -> Any:
    value, _ = s.a(x).max(1, keepdim=True)
    return s.head(value * s.b(x).min(1, keepdim=True).values)


def test_channels_of_which_only_the_largest_value_is_used_are_cut() -> None:
    found = anatomy(module(largest, a=linear(6, 8), b=linear(6, 7), head=linear(1, 5)), (6,))
    assert [group.name for group in found.groups] == ["a", "b"]


class Plain(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self, *, readable: bool) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(6, 4), nn.Linear(4, 7), nn.Linear(7, 5)
        self.gain = torch.ones(4)
        if readable:
            float(self.gain.sum())  # keeps the model from being built without its numbers

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.b(self.a(x) * self.gain))
        return out


def test_a_plain_tensor_keeps_its_channels_whole_and_names_the_remedy() -> None:
    found = anatomy(lambda: Plain(readable=True), (6,))
    assert [group.name for group in found.groups] == ["b"]
    assert "'gain' is a tensor that is neither" in describe_whole(found)["a.weight"]
    with pytest.raises(UncuttableModelError, match=r"'gain' is a tensor that is neither.*register_buffer"):
        anatomy(lambda: Plain(readable=False), (6,))
