"""Warnings about a model, which a run logs once when it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import Tensor, nn

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.run import ActiveRun


class Out(NamedTuple):
    logits: Tensor
    aux: Tensor


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Out:
        logits = self.head(x.flatten(1))
        return Out(logits, logits)


class Own(Named):
    def training_loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs[0], targets)


def named(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Named()


def own(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Own()


def bench(model: str) -> Workbench:
    raw = {"name": "x", "data": {"set": "digits", "clients": 2}, "model": {"name": model},
           "algorithm": {"name": "fedavg"}}  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


def test_a_named_tuple_of_which_the_last_output_is_trained_is_pointed_out() -> None:
    made = bench(f"{__name__}:named")
    made.check()
    (warning,) = made.model_warnings
    assert warning.startswith(f"model.name = {__name__}:named: the model returns a named tuple (logits, aux)")


@pytest.mark.parametrize("model", ["mlp", f"{__name__}:own"])
def test_other_models_have_no_warning(model: str) -> None:
    assert bench(model).model_warnings == []


def test_a_run_logs_it_when_it_starts_and_keeps_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = ActiveRun(bench(f"{__name__}:named").experiment, tmp_path / "run", resume=False)
    try:
        (warning,) = run.result().warnings
    finally:
        run.folder.release()
    assert "a named tuple (logits, aux)" in warning
    assert caplog.messages.count(warning) == 1
