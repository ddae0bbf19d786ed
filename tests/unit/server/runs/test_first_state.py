"""The state before round 1: what boards could not receive is refused before the run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.machine_setup import first_state


class Scaled(nn.Module):
    """A model with a buffer beyond fp16."""

    large: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
        self.register_buffer("large", torch.full((2,), 1e5))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x) * self.large[0] / self.large[1]
        return result


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Scaled(classes)


def begin(down: str, folder: Path) -> Any:
    fields = {
        "name": "wire", "rounds": 1, "data": {"set": "digits", "clients": 2}, "model": {"name": f"{__name__}:build"},
        "algorithm": {"name": "fedavg"}, "wire": {"down": down},
    }  # fmt: skip
    return first_state(Workbench(Experiment.model_validate(fields)), folder)


def test_a_number_that_the_wire_cannot_hold_names_the_key_and_the_array(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"^wire\.down = fp16: array 'large' holds numbers beyond fp16's 65504"):
        begin("fp16", tmp_path)
    assert np.array_equal(begin("bf16", tmp_path).arrays["large"], np.full(2, 1e5, np.float32))
