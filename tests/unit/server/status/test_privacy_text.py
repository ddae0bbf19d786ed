"""What people read of the privacy that a run spends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedquilt_server.status.privacy_text import describe_privacy
from fedquilt_server.status.problems import list_problems
from fedquilt_server.status.results import PrivacySpent, Result, RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.summary import summary_lines

USED_UP = "the privacy budget is used up: 19.99 of epsilon 20"


def spent(client: int, epsilon: float | None = None, **changes: Any) -> PrivacySpent:
    return PrivacySpent.model_validate({"client": client, "epsilon": epsilon, "budget": 20.0, "delta": 1e-5, **changes})


NONE = spent(5, budget=None, delta=None, declined="the board's owner allows less")
"""A client without privacy."""


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], ""),
        ([spent(0, 12.5)], "largest epsilon 12.5 of 20 at delta 1e-5, 1 of 1 client has reported one"),
        (
            [spent(0, 19.991), spent(1, 19.5), spent(2)],
            "largest epsilon 19.99 of 20 at delta 1e-5, 2 of 3 clients have reported one",
        ),
        (
            [spent(0, 2.5, budget=3.0, delta=0.001), spent(1, 1.0)],
            "largest epsilon 2.5 of 3 at delta 0.001, 2 of 2 clients have reported one",
        ),
        ([spent(0), spent(1)], "epsilon: 0 of 2 clients have reported one"),
        ([NONE, NONE], "2 clients declined"),
        (
            [spent(0, 12.5), NONE],
            "largest epsilon 12.5 of 20 at delta 1e-5, 1 of 1 client has reported one, 1 declined",
        ),
        (
            [spent(0, declined=USED_UP), spent(1, 19.9)],
            "largest epsilon 19.9 of 20 at delta 1e-5, 1 of 2 clients have reported one, 1 declined",
        ),
    ],
)
def test_the_largest_epsilon_is_named_with_its_budget(rows: list[PrivacySpent], text: str) -> None:
    assert describe_privacy(rows) == text


def summary(**changes: Any) -> dict[str, str]:
    names = {"name": "n", "run": "r", "algorithm": "fedavg", "dataset": "digits", "seed": 1, "rounds": []}
    return dict(summary_lines(Result.model_validate({**names, **changes}), Path("runs/a"), {}))


def test_the_summary_has_the_privacy_and_why_clients_declined() -> None:
    lines = summary(privacy=[spent(0, 19.991), spent(1, declined=USED_UP), spent(2, declined=USED_UP)])
    assert lines["privacy"] == "largest epsilon 19.99 of 20 at delta 1e-5, 1 of 3 clients have reported one, 2 declined"
    assert lines["declined"] == f"client 1: {USED_UP} (and 1 more client)"
    assert summary(privacy=[spent(0, 2.0)]).keys() & {"privacy", "declined"} == {"privacy"}
    assert "privacy" not in summary()


def test_the_summary_has_the_privacy_of_the_coordinator() -> None:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    spent = {"epsilon": 4.25, "epsilon_known": 7.5, "budget": 20.0, "delta": 0.001, "noise": 1.5, "clip": 0.5}
    lines = summary(rounds=[{**zeros, "round": 1, "central_privacy": spent}])
    known = "7.5 for those who know which clients took part"
    assert lines["privacy"] == f"epsilon 4.25 of 20 at delta 0.001 for each client, by the coordinator's noise; {known}"


def test_a_client_that_declines_is_a_problem_of_the_run() -> None:
    rows = [spent(0, 3.0), spent(3, declined=USED_UP), spent(4, declined=USED_UP)]
    (one,) = list_problems(Snapshot(name="n", broker_connected=True, privacy=rows))
    assert one.text == f"2 clients declined: client 3: {USED_UP}"
    assert one.level == "warning"
