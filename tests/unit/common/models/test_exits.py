"""Early exits: the same model with more classifiers, and what is left of it when it is cut in depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models import build_model
from fedquilt_common.models.exits import MultiExit

pytestmark = pytest.mark.usefixtures("plain_convolutions")
SHAPE = (3, 16, 16)
MODELS_WITH_EXITS: dict[str, tuple[dict[str, Any], int]] = {
    "mlp": ({"hidden": [9, 8, 7]}, 3),
    "convnet": ({"width": 0.1}, 4),
    "vgg16": ({"width": 0.05}, 5),
    "resnet18": ({"width": 0.1}, 4),
    "mobilenet-v2": ({"width": 0.1}, 7),
}
"""Parameters that make it small, and how many stages it has."""
CASES = [(name, params, stages) for name, (params, stages) in MODELS_WITH_EXITS.items()]


def built(name: str, params: dict[str, Any], exits: Sequence[int], classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, {**params, "exits": exits}, SHAPE, classes)()


def with_exits(name: str, params: dict[str, Any], exits: Sequence[int]) -> MultiExit:
    module = built(name, params, exits)
    assert isinstance(module, MultiExit)
    return module


def images() -> Tensor:
    return torch.randn((2, *SHAPE), generator=torch.Generator().manual_seed(1))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("name", "params", "stages"), CASES)
def test_every_stage_can_have_an_exit(name: str, params: dict[str, Any], stages: int) -> None:
    module = with_exits(name, params, list(range(stages - 1)))
    outputs = module(images())
    assert [tuple(output.shape) for output in outputs] == [(2, 10)] * stages
    sum(output.sum() for output in outputs).backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize(("name", "params", "stages"), CASES)
def test_without_exits_nothing_changes(name: str, params: dict[str, Any], stages: int) -> None:
    plain, usual = built(name, params, []), build_model(name, params, SHAPE, 10)()
    assert not isinstance(plain, MultiExit)
    assert {k: v.shape for k, v in plain.state_dict().items()} == {k: v.shape for k, v in usual.state_dict().items()}
    assert not any(key.startswith(("stages.", "exits.")) for key in plain.state_dict())


@pytest.mark.parametrize(("name", "params", "stages"), CASES)
def test_exits_only_add_their_own_arrays(name: str, params: dict[str, Any], stages: int) -> None:
    """The deepest exit is the usual model: same arrays in the same order, same output."""
    plain, module = built(name, params, []).eval(), with_exits(name, params, [0]).eval()
    early = size(module.exits[0])
    assert size(module) == size(plain) + early
    own = {key: value for key, value in module.state_dict().items() if not key.startswith("exits.0.")}
    assert [v.shape for v in own.values()] == [v.shape for v in plain.state_dict().values()]
    plain.load_state_dict(dict(zip(plain.state_dict(), own.values(), strict=True)))
    torch.testing.assert_close(module(images())[-1], plain(images()))


@pytest.mark.parametrize(("name", "params", "stages"), CASES)
def test_names_tell_the_depth(name: str, params: dict[str, Any], stages: int) -> None:
    module = with_exits(name, params, [0])
    places = {tuple(key.split(".")[:2]) for key in module.state_dict()}
    assert places == {*(("stages", str(k)) for k in range(stages)), ("exits", "0"), ("exits", "1")}
    assert module.after == (0, stages - 1)


@pytest.mark.parametrize(("name", "params", "stages"), CASES)
def test_cut_in_depth(name: str, params: dict[str, Any], stages: int) -> None:
    module = with_exits(name, params, [0, 1]).eval()
    whole, before = module(images()), dict(module.state_dict())
    for exits, last_stage in ((2, 1), (1, 0)):
        module.cut(exits)
        outputs = module(images())
        assert len(outputs) == exits
        for output, expected in zip(outputs, whole, strict=False):
            torch.testing.assert_close(output, expected)
        left = set(module.state_dict())
        beyond = {
            key for key in before
            if int(key.split(".")[1]) > (last_stage if key.startswith("stages.") else exits - 1)
        }  # fmt: skip
        assert left == set(before) - beyond


def test_regression_has_one_output_at_every_exit() -> None:
    assert [tuple(output.shape) for output in built("mlp", {"hidden": [5, 4]}, [0], 0)(images())] == [(2, 1)] * 2


@pytest.mark.parametrize("exits", [[3], [-1], [1, 0], [0, 0], ["0"], [True], [0.0], 1, "01", {"0": 1}])
def test_exits_that_there_are_not(exits: Any) -> None:
    with pytest.raises(ExperimentError, match=r"model\.exits .* stages from 0 to 2 .* 'convnet'"):
        built("convnet", {"width": 0.1}, exits)


@pytest.mark.parametrize("hidden", [[], [5]])
def test_mlp_with_too_few_layers_for_an_exit(hidden: list[int]) -> None:
    with pytest.raises(ExperimentError, match=r"model\.exits"):
        built("mlp", {"hidden": hidden}, [0])


@pytest.mark.parametrize(
    ("exits", "after"), [(1, [0, 1]), (2, [1, 0]), (2, [0, 0]), (1, [0]), (0, []), (2, [-1, 1])], ids=str
)
def test_exits_that_do_not_match_their_stages(exits: int, after: list[int]) -> None:
    with pytest.raises(ExperimentError, match="give each exit a stage of its own"):
        MultiExit([nn.Linear(2, 2), nn.Linear(2, 2)], [nn.Linear(2, 1) for _ in range(exits)], after)
