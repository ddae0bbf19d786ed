"""A run whose sub-models would compute something else than the model's own code is refused before it starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.user_modules import linear, module
from torch import Tensor, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench


def forward(s: Any, x: Tensor) -> Any:
    with torch.no_grad():
        x = s.a(x.flatten(1))
    return s.h(x.view(-1, 8))


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return module(forward, a=linear(64, 8), h=linear(8, classes))()


def bench(algorithm: str) -> Workbench:
    raw = {"name": "x", "data": {"set": "digits", "clients": 4}, "model": {"name": f"{__name__}:build"}}
    return Workbench(Experiment.model_validate({**raw, "algorithm": {"name": algorithm}}))


def test_a_run_with_sub_models_is_refused_and_one_with_whole_models_is_not() -> None:
    bench("fedavg").check()
    with pytest.raises(UncuttableModelError, match=r"but in the graph the gradient of 'a\.weight' is another one"):
        bench("heterofl").check()
