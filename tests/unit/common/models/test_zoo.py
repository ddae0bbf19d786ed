"""Every model: it runs and trains on what it takes, says what it does not take, and can be traced."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.support.tables import each
from torch import Tensor, fx, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models import MODELS, build_model
from fedquilt_common.models.attention import Attention
from fedquilt_common.models.static_norm import Scaler, StaticBatchNorm
from fedquilt_common.tracing.building import build_on_meta

pytestmark = pytest.mark.usefixtures("plain_convolutions")
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [9, 8]},
    "convnet": {"width": 0.1},
    "vgg16": {"width": 0.03},
    "resnet18": {"width": 0.1},
    "preact-resnet18": {"width": 0.1},
    "mobilenet-v2": {"width": 0.1},
    "transformer": {"embed": 8, "hidden": 16, "heads": 2, "head_dim": 3, "layers": 2},
    "tabular": {"hidden": [9, 8]},
    "hars": {"number": 9},
    "time-series": {"filters": 4, "kernel": 3, "units": 5},
    "harb": {"number": 9},
    "image-cnn": {"filters": [3, 4], "hidden": 5},
    "aep-mlp": {"hidden": [9, 8]},
    "wisdm-lstm": {"hidden": 9},
    "resnet18-gn": {"width": 0.1},
    "casas-bilstm": {"vocabulary": 11, "units": 5},
    "epic-resnet18": {"width": 0.1},
}
FLAT = ("mlp", "tabular", "hars", "aep-mlp")
"""They take samples of any shape."""
TIMED = ("time-series", "harb", "wisdm-lstm")
NUMBERED = ("transformer", "casas-bilstm")
"""They take sequences of whole numbers."""
IMAGE_MODELS = [name for name in SMALL if name not in (*FLAT, *TIMED, *NUMBERED, "image-cnn")]
NORMED = ("vgg16", "resnet18", "preact-resnet18", "mobilenet-v2", "epic-resnet18")
"""Models whose parameter ``norm`` chooses their norms; ``test_norms.py``."""
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *SMALL.items(),
    *((name, {**SMALL[name], "exits": [0]}) for name in ("mlp", "convnet", "vgg16", "resnet18")),
    ("mobilenet-v2", {"width": 0.1, "bias": True, "expand_first": True}),
    ("preact-resnet18", {"hidden": [6, 8, 10, 12], "blocks": [2, 1, 1, 1]}),
    ("preact-resnet18", {"hidden": [6, 8], "blocks": [1, 1]}),
    ("resnet18", {"hidden": [9, 12, 25, 51], "width": 0.5}),
    ("resnet18-gn", {"width": 0.1, "stem": "profiles"}),
    ("mlp", {"hidden": [9, 8], "dropout": 0.5, "exits": [0]}),
    *((name, {**SMALL[name], "norm": norm}) for name in NORMED for norm in ("batch", "static", "group")),
]


class LeafTracer(fx.Tracer):
    """Steps into everything but the layers whose inside does not concern a tracer."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(m, Attention | StaticBatchNorm | Scaler)
        return own or super().is_leaf_module(m, module_qualified_name)


def shape_for(name: str) -> tuple[int, ...]:
    return (6,) if name in NUMBERED else (4, 50) if name in TIMED else (3, 32, 32)


def samples(name: str, count: int, shape: tuple[int, ...], classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if name in NUMBERED:
        return torch.randint(classes, (count, *shape), generator=generator)
    return torch.randn((count, *shape), generator=generator)


def built(name: str, params: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, params, shape, classes)()


def test_all_models_are_here() -> None:
    assert set(SMALL) == set(MODELS) - {"yolov8n"}  # test_yolov8n.py


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize(
    ("shape", "classes", "outputs"),
    [((1, 28, 28), 62, 62), ((3, 32, 32), 10, 10), ((22, 20, 20), 22, 22), ((3, 16, 40), 7, 7), ((2, 64, 33), 0, 1)],
)
def test_image_models_run_and_train(name: str, shape: tuple[int, ...], classes: int, outputs: int) -> None:
    module = built(name, SMALL[name], shape, classes)
    out = module(samples(name, 2, shape, classes))
    assert out.shape == (2, outputs)
    out.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize("length", [1, 6, 20])
def test_transformer_runs_and_trains(length: int) -> None:
    module = built("transformer", SMALL["transformer"], (length,), 11)
    out = module(samples("transformer", 3, (length,), 11))
    assert out.shape == (3, 11)
    out.square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_a_single_sample_can_be_evaluated(name: str) -> None:
    module = built(name, SMALL[name], shape_for(name), 5).eval()
    out = module(samples(name, 1, shape_for(name), 5))
    assert out.shape == (1, 5)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", ["preact-resnet18"])
def test_static_norms_train_on_a_single_sample_of_the_smallest_size(name: str) -> None:
    out = built(name, SMALL[name], (3, 8, 8), 5)(samples(name, 1, (3, 8, 8), 5))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(("name", "params"), OPTIONS)
def test_can_be_traced(name: str, params: dict[str, Any]) -> None:
    shape = shape_for(name)
    module = built(name, params, shape, 5).eval()
    traced = fx.GraphModule(module, LeafTracer().trace(module))
    x = samples(name, 2, shape, 5)
    torch.testing.assert_close(traced(x), module(x))


@pytest.mark.parametrize(("name", "params"), OPTIONS)
def test_tracing_finds_no_sizes_in_forward(name: str, params: dict[str, Any]) -> None:
    """What a forward pass calls on tensors has no numbers of channels in it, so a cut model runs the same code."""
    module = built(name, params, shape_for(name), 5)
    for node in LeafTracer().trace(module).nodes:
        if node.op in ("call_method", "call_function"):
            numbers = [n for n in (*node.args, *node.kwargs.values()) if isinstance(n, int)]
            assert all(-1 <= number <= 1 for number in numbers), node.format_node()


@pytest.mark.parametrize("name", SMALL)
def test_no_layer_overwrites_its_input(name: str) -> None:
    module = built(name, SMALL[name], shape_for(name), 5)
    assert not any(getattr(layer, "inplace", False) for layer in module.modules())


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_width_scales_and_leaves_a_channel(name: str) -> None:
    def size(width: float) -> int:
        module = build_on_meta(build_model(name, {"width": width}, (3, 32, 32), 10))
        return sum(p.numel() for p in module.parameters())

    assert size(1e-6) < size(0.5) < size(1) < size(2)
    assert built(name, {"width": 1e-6}, (3, 32, 32), 10).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_width_scales_the_linear_layers_of_vgg16_too() -> None:
    module = built("vgg16", {"width": 0.05, "head": 100}, (3, 32, 32), 10)
    shapes = [tuple(layer.weight.shape) for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert shapes == [(5, 25), (5, 5), (10, 5)]


@pytest.mark.parametrize(
    ("name", "sides"),
    [("resnet18", [32, 16, 8, 4]), ("preact-resnet18", [32, 16, 8, 4]), ("mobilenet-v2", [32, 32, 16, 8, 8, 4, 4])],
)
def test_every_stage_has_its_size(name: str, sides: list[int]) -> None:
    module, seen = built(name, SMALL[name], (3, 32, 32), 5).eval(), dict[str, int]()
    for part, layer in module.named_children():
        if part.startswith(("layer", "stage")):
            stage = part.partition("_")[0]
            layer.register_forward_hook(lambda _, __, out, stage=stage: seen.update({stage: out.shape[-1]}))
    module(samples(name, 2, (3, 32, 32), 5))
    assert list(seen.values()) == sides


def test_mobilenet_v2_adds_a_block_to_its_input_where_sizes_allow() -> None:
    module = built("mobilenet-v2", {"width": 0.1}, (3, 32, 32), 5).eval()
    for name, block in module.named_children():
        if name.startswith("stage"):
            last = block.get_submodule("layers.project_norm")
            nn.init.zeros_(last.get_parameter("weight"))
            nn.init.zeros_(last.get_parameter("bias"))
            channels = block.get_submodule("layers.depthwise_conv").get_parameter("weight").shape[0]
            x = torch.ones(2, channels // (1 if name == "stage0_0" else 6), 8, 8)
            assert torch.equal(block(x), x) == (not name.endswith("_0"))


def test_width_rounds_down() -> None:
    module = built("convnet", {"width": 0.66}, (3, 32, 32), 10)
    assert [p.shape[0] for n, p in module.named_parameters() if n.endswith("weight")] == [42, 42, 253, 126, 10]


@each(itertools.product(IMAGE_MODELS, [0, -1, True, "1", None, [1], float("nan"), float("inf"), 65]))
def test_width_that_is_none(name: str, width: Any) -> None:
    with pytest.raises(ExperimentError, match=r"model\.width = .*: must be a positive number"):
        built(name, {"width": width}, (3, 32, 32), 10)


@each(itertools.product(IMAGE_MODELS, [(64,), (3, 7, 7), (3, 32, 7), (1, 3, 32, 32), (32, 32)]))
def test_image_models_refuse_what_is_no_large_enough_image(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ExperimentError, match=rf"model\.name = {name}: samples of shape .* choose another model"):
        built(name, SMALL[name], shape, 10)


@pytest.mark.parametrize(("shape", "classes"), [((3, 32, 32), 10), ((6,), 0), ((6,), 1), ((), 5)])
def test_transformer_refuses_what_is_no_language(shape: tuple[int, ...], classes: int) -> None:
    with pytest.raises(ExperimentError, match=r"model\.name = transformer: .* choose another model"):
        built("transformer", {}, shape, classes)


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        *(("vgg16", {"head": bad}, "model.head = ") for bad in (0, -1, True, 1.5, "9", None)),
        *(("resnet18", {"hidden": bad}, "model.hidden = ") for bad in (64, "ab", [], [1, 2, 3], [1, 2, 3, 0], [1] * 5)),
        ("preact-resnet18", {"hidden": [4, 5]}, "model.blocks = [2, 2, 2, 2]: must have as many stages"),
        ("preact-resnet18", {"hidden": [4, 0], "blocks": [1, 1]}, "model.hidden = "),
        ("preact-resnet18", {"blocks": [2, 2, 2, True]}, "model.blocks = "),
        *(("transformer", {key: 0}, f"model.{key} = 0: must be a positive whole number")
          for key in ("embed", "hidden", "heads", "head_dim", "layers")),
        ("transformer", {"dropout": 2}, "dropout"),
    ],
)  # fmt: skip
def test_wrong_parameters(name: str, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        built(name, params, shape_for(name), 10)
    assert expected in str(caught.value)


def test_a_cut_shortcut_takes_the_normalised_input() -> None:
    """Pre-activation: scaling the block's input changes nothing on the way through the shortcut convolution."""
    module = built("preact-resnet18", {"hidden": [6, 8], "blocks": [1, 1]}, (3, 8, 8), 4)
    block = module.get_submodule("layer2.0")
    x = torch.randn((4, 6, 8, 8), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(block(x), block(1000 * x), atol=1e-3, rtol=1e-3)
