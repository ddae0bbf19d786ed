"""Which algorithm can do which learning task: those that cannot refuse it before the first round."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.cases import CASES
from tests.support.tables import each

from fedquilt_common.algorithm_api import declaration_of
from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.learning_tasks import LEARNING_TASKS
from fedquilt_server.lab.workbench import Workbench

SETS = {
    "classification": "digits",
    "regression": "tests.support.toy_sets:values",
    "next-word": "tests.support.toy_sets:words",
    "detection": "tests.support.toy_sets:boxes",
}


MODELS: dict[str, dict[str, Any]] = {
    SETS["next-word"]: {"name": "transformer", "outputs": "each", "embed": 16, "hidden": 32, "layers": 2},
    SETS["detection"]: {"name": "tests.support.toy_models:detector"},
}


def workbench(name: str, data: str, **changes: Any) -> Workbench:
    fields = json.loads(json.dumps(CASES[name].fields))  # tuples become lists, as in a file
    raw = {
        "name": "tasks", "seed": 3, "rounds": 2, "data": {"set": data, "clients": 4, **changes},
        "model": MODELS.get(data, CASES[name].model), "algorithm": {"name": name, **fields},
        "training": {"epochs": 2, "batch": 16, "lr": 0.05},
    }  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


@each(itertools.product(SETS, ALGORITHMS))
def test_an_algorithm_refuses_the_tasks_that_it_cannot_do(task: str, name: str) -> None:
    bench = workbench(name, SETS[task])
    assert bench.learning_task.name == task
    possible = declaration_of(make_algorithm(name, CASES[name].fields, ())).tasks
    if possible is None or task in possible:
        bench.check()
        return
    with pytest.raises(ExperimentError, match=f"algorithm.name = {name}: .* task of the data set '.*' is {task}"):
        bench.check()


def test_the_documentation_lists_tasks_metrics_and_the_algorithms_that_cannot_do_all() -> None:
    text = (Path(__file__).parents[4] / "docs" / "tasks.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    metrics = {row[0].strip("`"): row[-1] for row in rows if len(row) == 5}
    assert {name: metrics.get(name) for name in LEARNING_TASKS} == {
        name: ", ".join(f"`{metric.name}`" for metric in task.metrics) for name, task in LEARNING_TASKS.items()
    }
    listed = {name: row[1] for row in rows if len(row) == 2 for name in row[0].replace("`", "").split(", ")}
    for name in ALGORITHMS:
        declared = declaration_of(make_algorithm(name, CASES[name].fields, ()))
        if declared.tasks is not None and name in listed:
            assert {part.strip("` ") for part in listed[name].split(",")} == declared.tasks
        elif declared.tasks is not None:
            assert declared.any_models, f"{name} is missing in docs/tasks.md"  # the algorithms of soft labels
