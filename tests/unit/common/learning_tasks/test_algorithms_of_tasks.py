"""Which algorithm can do which learning task: those that cannot refuse it before the first round."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.cases import CASES

from fedquilt_common.algorithm_api import declaration_of
from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench

SETS = {
    "classification": "digits",
    "regression": "tests.support.toy_sets:values",
    "next-word": "tests.support.toy_sets:words",
    "detection": "tests.support.toy_sets:boxes",
}


def workbench(name: str, data: str, **changes: Any) -> Workbench:
    fields = json.loads(json.dumps(CASES[name].fields))  # tuples become lists, as in a file
    raw = {
        "name": "tasks", "seed": 3, "rounds": 2, "data": {"set": data, "clients": 4, **changes},
        "model": {"name": "mlp", "hidden": [16, 16]}, "algorithm": {"name": name, **fields},
        "training": {"epochs": 2, "batch": 16, "lr": 0.05},
    }  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


@pytest.mark.parametrize("task", SETS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_refuses_the_tasks_that_it_cannot_do(name: str, task: str) -> None:
    bench = workbench(name, SETS[task])
    assert bench.learning_task.name == task
    possible = declaration_of(make_algorithm(name, CASES[name].fields, ())).tasks
    if possible is None or task in possible:
        bench.check()
        return
    with pytest.raises(ExperimentError, match=f"algorithm.name = {name}: .* task of the data set '.*' is {task}"):
        bench.check()
