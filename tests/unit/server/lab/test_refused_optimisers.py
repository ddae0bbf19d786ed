"""Optimisers that an algorithm cannot use are refused before the run starts."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.machine_setup import make_context


def bench(algorithm: dict[str, Any], **training: Any) -> Workbench:
    raw = {"name": "x", "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp", "hidden": [16, 16]},
           "algorithm": algorithm, "training": training}  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


@pytest.mark.parametrize("algorithm", [{"name": "heterofl"}, {"name": "adaptivefl", "starts": [1]}])
def test_sub_models_cannot_keep_optimisers(algorithm: dict[str, Any]) -> None:
    bench(algorithm).check()
    with pytest.raises(ExperimentError, match=r"training.keep_optimiser = true: .* remove the key"):
        bench(algorithm, keep_optimiser=True).check()


def test_fair_steps_are_those_of_sgd() -> None:
    made = bench({"name": "qfedavg", "q": 0.1}, optimiser="adam", lr=0.001)
    with pytest.raises(ExperimentError, match=r"training.optimiser = adam: .* choose sgd"):
        made.algorithm().init(made.first_model(), make_context(made, 0, {}))
