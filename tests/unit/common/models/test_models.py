"""Models: the sizes the papers state, and clear words for wrong parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedquilt_common.errors import ExperimentError, ForbiddenImportError, UnknownNameError
from fedquilt_common.models import MODELS, build_model
from fedquilt_common.tracing.building import build_to_load
from fedquilt_common.tracing.outputs import check_outputs

pytestmark = pytest.mark.usefixtures("plain_convolutions")


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_convnet_has_the_published_size() -> None:
    assert size(build_model("convnet", {}, (3, 32, 32), 10)()) == 797_962


def test_default_mlp_is_the_test_beds_network() -> None:
    assert 4 * size(build_model("mlp", {}, (3, 32, 32), 10)()) == 1_233_240


OTHERS = {"yolov8n", "transformer", "casas-bilstm", "time-series", "wisdm-lstm", "hars", "harb"}


@pytest.mark.parametrize("name", sorted(MODELS.keys() - OTHERS))
@pytest.mark.parametrize(
    ("shape", "classes", "outputs"), [((1, 28, 28), 10, 10), ((3, 16, 20), 7, 7), ((1, 32, 32), 0, 1)]
)
def test_outputs(name: str, shape: tuple[int, ...], classes: int, outputs: int) -> None:
    module = build_to_load(build_model(name, {}, shape, classes))  # the shape depends on no number
    assert module(torch.zeros(2, *shape)).shape == (2, outputs)


def test_mlp_layers() -> None:
    module = build_model("mlp", {"hidden": [5, 4]}, (1, 2, 3), 3)()
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters() if name.endswith("weight")}
    assert shapes == {"fc1.weight": (5, 6), "fc2.weight": (4, 5), "fc3.weight": (3, 4)}
    assert sum(isinstance(layer, nn.ReLU) for layer in module.children()) == 2
    assert size(build_model("mlp", {"hidden": []}, (4,), 2)()) == 10


def test_mlp_with_dropout_has_the_same_arrays() -> None:
    plain, regular = (build_model("mlp", {"hidden": [5, 4], "dropout": rate}, (6,), 3)() for rate in (0, 0.5))
    assert list(plain.state_dict()) == list(regular.state_dict())
    assert [type(layer).__name__ for layer in regular.children()].count("Dropout") == 2
    assert not any(isinstance(layer, nn.Dropout) for layer in plain.children())


def test_each_call_builds_anew() -> None:
    make = build_model("mlp", {}, (4,), 2)
    assert make() is not make()


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("mlp", {"hiden": [1]}, "model.hiden: the model 'mlp' has no such parameter; did you mean 'hidden'?"),
        ("mlp", {"classes": 3}, "model.classes"),
        (
            "convnet",
            {"kernel": 3},
            "model.kernel: the model 'convnet' has no such parameter; choose one of: exits, width",
        ),
        ("convnet", {"width": 0}, "model.width"),
        *[("mlp", {"hidden": bad}, "model.hidden") for bad in (100, "ab", [0], [True], [1.5], {"a": 1})],
    ],
)
def test_wrong_parameters(name: str, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        build_model(name, params, (3, 32, 32), 10)()
    assert expected in str(caught.value)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (1, 28, 15)])
def test_convnet_refuses_what_is_no_large_enough_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ExperimentError, match="16 x 16"):
        build_model("convnet", {}, shape, 10)()


OWN = """
from torch import nn
def linear(input_shape, classes, *, gain, bias=True):
    return nn.Linear(input_shape[0], classes * gain, bias=bias)
def anything(**params):
    assert params == {"input_shape": (4,), "classes": 2, "x": 1}
    return nn.Identity()
def nothing(input_shape, classes):
    return 3
def lazy(input_shape, classes):
    return nn.LazyLinear(classes)
def broken(input_shape, classes):
    raise RuntimeError("no luck")
def leaves(input_shape, classes):
    raise SystemExit(0)
def interrupted(input_shape, classes):
    raise KeyboardInterrupt
class LeavesForward(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
    def forward(self, x):
        raise SystemExit(2)
class WithNotes(nn.Linear):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape[0], classes)
    def get_extra_state(self):
        return {"notes": 1}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_models_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_models_of_a_user"


def test_own_factory(own: str) -> None:
    made = build_model(f"{own}:linear", {"gain": 3, "bias": False}, (4,), 2, [own])()
    assert size(made) == 24
    assert isinstance(build_model(f"{own}:anything", {"x": 1}, (4,), 2, ["*"])(), nn.Identity)
    with pytest.raises(ForbiddenImportError):
        build_model(f"{own}:linear", {"gain": 3}, (4,), 2)


@pytest.mark.parametrize(
    ("factory", "params", "expected"),
    [
        ("linear", {}, "model.gain: .* needs this parameter"),
        ("linear", {"gain": 1, "bas": 0}, "did you mean 'bias'"),
        ("linear", {"gain": "x"}, "cannot be built"),
        ("nothing", {}, "returned a int; it must return a torch.nn.Module"),
        ("lazy", {}, "weight of a lazy layer has no shape; give the layer its input size"),
        ("WithNotes", {}, "_extra_state of its state is a dict, but only arrays travel; remove get_extra_state"),
        ("broken", {}, "RuntimeError: no luck"),
        ("leaves", {}, r"^model '\w+:leaves': its factory called sys.exit\(0\) \(\w+.py line 15\); remove that call$"),
    ],
)
def test_own_factory_that_fails(own: str, factory: str, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(ExperimentError, match=expected):
        build_model(f"{own}:{factory}", params, (4,), 2, [own])()


def test_an_interrupted_factory_is_interrupted(own: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_model(f"{own}:interrupted", {}, (4,), 2, [own])()


def test_a_forward_that_leaves_the_program_is_an_error(own: str) -> None:
    build = build_model(f"{own}:LeavesForward", {}, (4,), 2, [own])
    with pytest.raises(ExperimentError, match=r"forward called sys.exit\(2\) \(\w+.py line 22\); remove that call"):
        check_outputs(build, np.zeros((2, 4), np.float32), "model")


def test_unknown_model() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'convnet'"):
        build_model("convnett", {}, (4,), 2)
