"""The parameter ``norm``: every model with batch norm has it, and it changes nothing but the norms."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.support.tables import each
from tests.unit.common.models.test_zoo import NORMED, SMALL, shape_for
from torch import nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models import build_model, has_param
from fedquilt_common.models.norms import NORMS, find_mixing_norm, find_running_norm, make_group_norm
from fedquilt_common.models.static_norm import StaticBatchNorm

KINDS = {"batch": nn.BatchNorm2d, "static": StaticBatchNorm, "group": nn.GroupNorm}


def build(name: str, shape: tuple[int, ...] = (3, 32, 32), **params: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, {**SMALL[name], **params}, shape, 5)()


def test_every_model_with_batch_norm_has_the_parameter() -> None:
    """But yolov8n, whose network is Ultralytics'; its loss cannot be private either."""
    normed = {name for name in SMALL if find_mixing_norm(build(name, shape_for(name)))}
    assert normed == set(NORMED)
    assert all(has_param(name, "norm") for name in NORMED)
    assert not has_param("mlp", "norm")
    assert not has_param("tests.support.models:own", "norm")


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("norm", NORMS)
def test_only_the_norms_change(name: str, norm: str) -> None:
    usual, other = build(name), build(name, norm=norm)
    kinds = (nn.BatchNorm2d, StaticBatchNorm, nn.GroupNorm)
    assert {type(part) for part in other.modules() if isinstance(part, kinds)} == {KINDS[norm]}
    parameters = dict(other.named_parameters())
    assert {n: p.shape for n, p in parameters.items()} == {n: p.shape for n, p in usual.named_parameters()}
    assert all(torch.equal(p, parameters[n]) for n, p in usual.named_parameters())


@pytest.mark.parametrize("name", NORMED)
def test_the_usual_norm_stays(name: str) -> None:
    assert find_mixing_norm(build(name)) == ("StaticBatchNorm" if name == "preact-resnet18" else "BatchNorm2d")


@pytest.mark.parametrize("tracks", [True, False])
def test_instance_norms_have_running_averages_if_they_track_them(tracks: bool) -> None:
    """Those of sub-models fit none of them either, and nothing clips them in private training."""
    norm = nn.InstanceNorm2d(3, track_running_stats=tracks)
    assert find_running_norm(norm) == ("InstanceNorm2d" if tracks else None)
    assert find_mixing_norm(norm) == ("InstanceNorm2d with track_running_stats" if tracks else None)


@each(itertools.product(NORMED, ["grop", "", None, ["group"], 2]))
def test_an_unknown_norm_is_refused_with_the_choices(name: str, wrong: Any) -> None:
    with pytest.raises(ExperimentError, match=r"model\.norm = .*: must be batch, static or group"):
        build(name, norm=wrong)


@pytest.mark.parametrize(("channels", "groups"), [(64, 2), (6, 2), (51, 1), (1, 1)])
def test_there_are_two_groups_if_the_channels_allow_it(channels: int, groups: int) -> None:
    assert make_group_norm(channels).num_groups == groups


@pytest.mark.parametrize("name", NORMED)
def test_a_narrow_model_still_sees_the_smallest_image(name: str) -> None:
    """Where an image has shrunk to one place, groups of one channel would make each sample 0."""
    shape = (3, 16, 16) if name == "vgg16" else (3, 8, 8)
    one, other = build(name, shape, norm="group", width=1 / 16).eval()(torch.randn(2, *shape))
    assert not torch.allclose(one, other)
