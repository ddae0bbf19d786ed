"""Which device and arithmetic a training process takes, and what it loads for that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.warm import call

from fedquilt_common.errors import UnsupportedPrecisionError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import cut
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_common.training import precision
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.precision import Arithmetic, choose_arithmetic
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Examples

PRECISIONS: list[Any] = ["fp32", "amp", "fp16", "bf16"]


@pytest.mark.parametrize(
    ("asked", "there", "expected"),
    [("cpu", True, "cpu"), ("auto", True, "cuda"), ("auto", False, "cpu"), ("cuda", True, "cuda")],
)
def test_the_device(asked: Any, there: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert choose_arithmetic(Training(device=asked)) == Arithmetic(expected, "fp32")


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    one = TorchLearner(lambda: torch.nn.Linear(3, 2), Training(device="cuda"), Classification(2))
    data = Examples(np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]))
    with pytest.raises(UnsupportedPrecisionError, match=r"training.device = cuda: .*; set training.device to cpu or"):
        one.train(one.init(0), data, seed=0)


def test_who_asks_for_the_cpu_never_wakes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> bool:
        raise AssertionError

    monkeypatch.setattr(torch.cuda, "is_available", asked)
    assert choose_arithmetic(Training(precision="fp16")) == Arithmetic("cpu", "fp16")


def test_amp_where_torch_would_silently_go_on_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_autocast_works", lambda arithmetic: False)
    with pytest.raises(UnsupportedPrecisionError, match="no fp16 autocast on cpu; choose fp32 or bf16"):
        choose_arithmetic(Training(precision="amp"))


def loaded_by_training() -> list[str]:
    """Train in every precision; returns which parts of torch's compiler this process has loaded then."""
    set_up_torch()
    data = Examples(np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]))
    for chosen in PRECISIONS:
        one = TorchLearner(lambda: torch.nn.Linear(3, 2), Training(precision=chosen, momentum=0.9), Classification(2))
        arrays = one.train(one.init(0), data, seed=0).arrays
        one.evaluate(arrays, data)
        one.statistics(arrays, data)
    return loaded_of_the_compiler()


def loaded_by_half_a_model() -> list[str]:
    """Train half of a model with an embedding, whose initial values torch draws with a part of its compiler."""
    set_up_torch()
    data = Examples(np.ones((4, 20), np.int64), np.array([0, 1, 0, 1]))
    build = build_model("casas-bilstm", {}, (20,), 2)
    blueprint = blueprint_for(build, data.x)
    half = prefix(blueprint.anatomy, 0.5, "ceil")
    one = TorchLearner(build, Training(), Classification(2), blueprint=lambda: blueprint)
    one.train(cut(one.init(0), half), data, seed=0, part=half)
    return loaded_of_the_compiler()


def loaded_of_the_compiler() -> list[str]:
    return [name for name in ("torch._dynamo", "sympy", "torch._inductor") if name in sys.modules]


@pytest.mark.parametrize("train", [loaded_by_training, loaded_by_half_a_model])
def test_training_does_not_load_the_compiler(train: Callable[[], list[str]]) -> None:
    """In a process that has loaded the learner and nothing else."""
    assert call(train) == []
