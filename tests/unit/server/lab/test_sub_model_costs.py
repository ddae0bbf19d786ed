"""The costs of the sub-models that a round's clients trained."""

from __future__ import annotations

from fedquilt_common.algorithm_api import State
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.submodels.selection import prefix
from fedquilt_server.lab.workbench import Workbench


def test_clients_without_a_level_have_no_costs() -> None:
    raw = {"name": "x", "data": {"set": "digits", "clients": 3}, "model": {"name": "mlp", "hidden": [16, 16]},
           "algorithm": {"name": "heterofl"}}  # fmt: skip
    bench = Workbench(Experiment.model_validate(raw))
    half, quarter = (prefix(bench.anatomy, width, "ceil") for width in (0.5, 0.25))
    state = State({}, report={"trained": {"0": 0.5}}, parts={0: half, 1: quarter, 2: half})
    assert bench.sub_model_costs(state).keys() == {"0.5"}
