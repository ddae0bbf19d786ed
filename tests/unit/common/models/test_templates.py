"""The FedAKD thesis's templates and the ten models of its Tables 3.3 and 3.4."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models import build_model
from fedquilt_common.models.tabular import HARS
from fedquilt_common.models.time_series import HARB


def built(name: str, params: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, params, shape, classes)()


@pytest.mark.parametrize("number", range(10))
def test_table_3_4_has_these_sizes(number: int) -> None:
    module = built("hars", {"number": number}, (561,), 6)
    assert sum(p.numel() for p in module.parameters()) / 1000 == pytest.approx(HARS[number].size, rel=0.05)
    assert module(torch.zeros(3, 561)).shape == (3, 6)
    dropout = next(layer for layer in module.modules() if isinstance(layer, nn.Dropout))
    assert dropout.p == HARS[number].dropout


@pytest.mark.parametrize("number", range(10))
def test_table_3_3_has_these_sizes_to_the_parameter(number: int) -> None:
    module = built("harb", {"number": number}, (4, 200), 4)
    named = dict(module.named_parameters())
    second = sum(p.numel() for name, p in named.items() if "bias_hh" in name)  # a bias that only torch has
    assert sum(p.numel() for p in named.values()) - second == HARB[number].size
    out = module(torch.zeros(3, 4, 200))
    assert out.shape == (3, 4)
    out.sum().backward()
    assert all(p.grad is not None for p in named.values())


@pytest.mark.parametrize(
    ("name", "params", "shape", "words"),
    [
        ("hars", {"number": 10}, (561,), "numbers 0 to 9"),
        ("hars", {"number": True}, (561,), "numbers 0 to 9"),
        ("harb", {}, (4, 50), "number"),
        ("tabular", {"hidden": []}, (5,), "model.hidden"),
        ("tabular", {"hidden": "90"}, (5,), "model.hidden"),
        ("tabular", {"activation": "gelu"}, (5,), "relu, elu, selu, tanh, sigmoid"),
        ("tabular", {"dropout": 1.0}, (5,), "model.dropout"),
        ("time-series", {}, (561,), r"\(channels, times\)"),
        ("time-series", {"kernel": 40, "convolutions": 3}, (9, 100), "leave nothing"),
        ("time-series", {"units": 0}, (9, 100), "model.units"),
        ("image-cnn", {}, (561,), "are no images"),
        ("image-cnn", {"filters": [4] * 6}, (1, 36, 36), "at least 64 x 64"),
        ("image-cnn", {"hidden": 1.5}, (1, 36, 36), "model.hidden"),
    ],
)
def test_what_cannot_be_built_is_named(name: str, params: dict[str, Any], shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        built(name, params, shape, 6)


def test_an_image_template_for_depth() -> None:
    module = built("image-cnn", {"filters": [4, 8], "hidden": 16}, (1, 36, 36), 5)
    assert module(torch.zeros(2, 1, 36, 36)).shape == (2, 5)
