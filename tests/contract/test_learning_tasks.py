"""Each algorithm learns every task that it does not refuse, and clients and coordinator measure the same metrics."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.cases import CASES
from tests.contract.federation import Driver, Fleet, make

from fedquilt_common.algorithm_api import declaration_of
from fedquilt_common.algorithms import ALGORITHMS

SETS = {
    "regression": "tests.support.toy_sets:values",
    "next-word": "tests.support.toy_sets:words",
    "detection": "tests.support.toy_sets:boxes",
}
MODELS: dict[str, Any] = {
    "regression": {"name": "mlp", "hidden": [16, 16, 16]},
    "next-word": {"name": "transformer", "outputs": "each", "embed": 16, "hidden": 32, "heads": 2, "head_dim": 8,
                  "layers": 2, "dropout": 0.0},
    "detection": {"name": "tests.support.toy_models:detector"},
}  # fmt: skip
PAIRS = [
    (name, task)
    for name in ALGORITHMS
    for task in SETS
    if (possible := declaration_of(make(name, CASES[name].fields)).tasks) is None or task in possible
]
ROUNDS = {"regression": 3, "next-word": 3, "detection": 3}
LR = {"regression": 0.03, "next-word": 0.04, "detection": 0.4}
OTHER_LAYERS = {"scalefl": {"widths": {"strong": 1.0, "medium": 0.5}, "exits": {"strong": 1, "medium": 1}}}
"""Fields for algorithms whose case needs a model for images."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_it_learns_every_task_that_it_does_not_refuse(name: str, task: str) -> None:
    fields = OTHER_LAYERS.get(name, CASES[name].fields)
    fleet = Fleet(make(name, fields), model=MODELS[task], data_set=SETS[task], lr=LR[task], batch=16)
    fleet.measures, fleet.measures_after = declaration_of(fleet.algorithm).holdout is not None, ROUNDS[task]
    main = fleet.bench.learning_task.main.name
    before = fleet.bench.evaluate(fleet.first_state().arrays or fleet.bench.first_model())[main]
    driver = Driver(fleet, ROUNDS[task])
    state = driver.run()
    after = driver.scores or fleet.algorithm.evaluate(state, fleet.ctx(ROUNDS[task], {}))
    assert after[main] > max(before + min(0.2, (1 - before) / 4), 0.0)
    if declaration_of(fleet.algorithm).own_models:
        assert after[f"personal_{main}"] == after[main]
    elif f"local_{main}" in after:
        assert after[f"local_{main}"] > before
    elif fleet.measures:
        assert after[f"global_{main}"] == after[main]
        assert after[f"personal_{main}"] > before
