"""The keys of exact sums: what goes together, and what the agents of a fleet are started with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fedquilt_common.experiment.experiment import Experiment, agent_specs

MINIMAL: dict[str, Any] = {
    "name": "x",
    "data": {"set": "digits", "clients": 4},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
    "participation": {"quorum": 3},
}


def parse(**changes: Any) -> Experiment:
    return Experiment.model_validate_json(json.dumps({**MINIMAL, **changes}))


def test_a_line_of_the_fleet_makes_its_agents_relays() -> None:
    lines = [{"clients": 3, "agents": 2, "relay": True}, {"clients": 1}]
    specs = agent_specs(parse(exact_sums=True, fleet=lines).fleet)
    assert [spec.flags for spec in specs] == [["relay"], ["relay"], []]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fleet": [{"clients": 4, "relay": True}]}, "set exact_sums: true, too"),
        ({"exact_sums": True, "secure_aggregation": True}, "exact sums of its own, of masked numbers"),
        ({"exact_sums": True, "privacy": {"mode": "central", "epsilon": 8, "delta": 1e-3}}, "see each update to clip"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        parse(**changes)
