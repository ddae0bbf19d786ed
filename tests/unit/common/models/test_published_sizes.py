"""Parameter counts that papers and published code state, and the names behind them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.data import golden_vectors
from torch import nn

from fedquilt_common.models import build_model
from fedquilt_common.tracing.building import build_on_meta

CIFAR = (3, 32, 32)
RESNET_STAGES = (96, 128, 256, 512)


def empty(name: str, params: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model without numbers: counting needs none."""
    return build_on_meta(build_model(name, params, shape, classes))


def size(name: str, params: dict[str, Any], shape: tuple[int, ...], classes: int) -> int:
    return sum(parameter.numel() for parameter in empty(name, params, shape, classes).parameters())


@pytest.mark.parametrize(
    ("name", "params", "shape", "classes", "expected"),
    [
        ("convnet", {}, CIFAR, 10, 797_962),
        ("vgg16", {}, CIFAR, 10, 33_646_666),
        ("vgg16", {}, CIFAR, 100, 34_015_396),
        ("vgg16", {"head": 256}, (1, 28, 28), 62, 14_935_038),
        ("resnet18", {}, CIFAR, 10, 11_173_962),
        ("resnet18", {"hidden": [96, 128, 256, 512]}, CIFAR, 10, 11_378_186),
        ("mobilenet-v2", {"bias": True, "expand_first": True}, (22, 20, 20), 22, 2_275_702),
        # not from golden vectors: these hold what we have
        ("mobilenet-v2", {}, CIFAR, 10, 2_236_682),
        ("preact-resnet18", {}, CIFAR, 10, 11_172_170),
        ("transformer", {}, (64,), 10_000, 4_299_632),
    ],
)
def test_sizes(name: str, params: dict[str, Any], shape: tuple[int, ...], classes: int, expected: int) -> None:
    assert size(name, params, shape, classes) == expected


def test_largest_models_of_adaptivefl() -> None:
    """Table 1's L1 and those of the other data sets are the models as they are built."""
    vectors = golden_vectors("c_adaptivefl_pool_and_rl.json")
    largest = {entry["name"]: entry for entry in vectors["vgg16_pool"]}["L1"]
    assert size("vgg16", {}, CIFAR, 10) == largest["params"]
    others = vectors["vgg16_other_class_counts"]["params"]
    assert size("vgg16", {}, CIFAR, 100) == others["vgg16_classes100_ch3"][-1]
    assert size("vgg16", {"head": 256}, (1, 28, 28), 62) == others["vgg16_classes62_ch1"][-1]
    widar = vectors["mobilenetv2_widar_22cls"][-1]["params"]
    assert size("mobilenet-v2", {"bias": True, "expand_first": True}, (22, 20, 20), 22) == widar


def test_vgg16_has_the_published_layers() -> None:
    largest = golden_vectors("c_adaptivefl_pool_and_rl.json")["vgg16_pool"][-1]
    module = empty("vgg16", {}, CIFAR, 10)
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == largest["conv_out_channels"]
    assert all(layer.bias is not None for layer in convolutions)
    linear = [list(layer.weight.shape) for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert linear == largest["fc_shapes"]


def test_resnet18_has_the_published_size_at_every_level() -> None:
    """AdaptiveFL's sub-models: stages from ``I`` on (1-based) at the width, the first convolution whole."""
    for level in golden_vectors("c_adaptivefl_pool_and_rl.json")["resnet18_cifar"]:
        hidden = [int(c * level["r_w"]) if k + 1 >= level["I"] else c for k, c in enumerate(RESNET_STAGES)]
        assert size("resnet18", {"hidden": hidden}, CIFAR, 10) == level["params"], level


RENAMED = {"conv1": "conv", "n4": "norm", "linear": "fc", "n1": "norm1", "n2": "norm2"}
"""The published pre-activation ResNet's names, and ours."""


def our_name(published: str) -> str:
    first, *rest = published.split(".")
    return ".".join([RENAMED.get(first, first), *(RENAMED.get(p, p) if p in ("n1", "n2") else p for p in rest)])


def test_preact_resnet18_has_the_published_arrays() -> None:
    example = golden_vectors("a_submodel_index_sets.json")["resnet_example"]
    module = empty("preact-resnet18", {"hidden": example["hidden"], "blocks": example["blocks"]}, CIFAR, 4)
    ours = {name: list(parameter.shape) for name, parameter in module.named_parameters()}
    assert ours == {our_name(name): shape for name, shape in example["global_shapes"].items()}


def test_transformer_has_the_published_layers() -> None:
    shapes = {name: tuple(p.shape) for name, p in empty("transformer", {}, (64,), 10_000).named_parameters()}
    assert shapes["embedding.weight"] == shapes["decoder.weight"] == (10_000, 128)
    for layer in range(3):
        place = f"layers.{layer}"
        assert shapes[f"{place}.attention.query.weight"] == (96, 128)
        assert shapes[f"{place}.attention.out.weight"] == (128, 96)
        assert shapes[f"{place}.fc1.weight"] == (2048, 128)
    assert "layers.3.fc1.weight" not in shapes
