"""Which keys an experiment with secure aggregation may have, and what each error says to do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedquilt_common.experiment.experiment import Experiment

BASE: dict[str, Any] = {
    "name": "x", "data": {"set": "digits", "clients": 8}, "algorithm": {"name": "fedavg"}, "secure_aggregation": True,
    "model": {"name": "mlp"}, "participation": {"per_round": 6, "quorum": 4},
}  # fmt: skip


def problems(**changes: Any) -> list[str]:
    try:
        Experiment.model_validate({**BASE, **changes})
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return []


def test_a_quorum_that_can_unmask_nobody_alone_is_accepted() -> None:
    assert problems() == []


@pytest.mark.parametrize(("per_round", "quorum", "least"), [(6, 3, 4), (6, 2, 4), (3, 2, 3), (2, 2, 3)])
def test_a_smaller_quorum_has_one_error_that_names_the_least(per_round: int, quorum: int, least: int) -> None:
    (found,) = problems(participation={"per_round": per_round, "quorum": quorum})
    assert f"participation.quorum: secure_aggregation needs {least} or more with {per_round} clients" in found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"wire": {"up": "fp16"}}, "sends whole numbers of 64 bits; remove the key"),
        ({"privacy": {"mode": "central", "epsilon": 8.0, "delta": 0.01}}, "must see each update to clip it"),
    ],
)
def test_what_would_show_or_narrow_single_replies_is_refused(changes: dict[str, Any], text: str) -> None:
    (found,) = problems(**changes)
    assert text in found
