"""When a run fails because clients fail, and when it must not."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common.errors import RunFailedError
from fedquilt_common.experiment.sections import Participation
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.status.stall import StallDetector, can_reach_quorum

REASONS = {3: "the client failed: the loss became nan", 4: "array 'w' holds numbers that are not finite"}


def shot(failing: int = 0, **more: Any) -> Snapshot:
    failures = dict(list(REASONS.items())[:failing])
    return Snapshot(**{"round": 2, "tasks": 4, "replies": 2, "failing": failing, "failures": failures, **more})


def check_twice(
    first: Snapshot, second: Snapshot | None = None, quorum: int = 4, later: float = 11.0, **policy: Any
) -> None:
    detector = StallDetector(Participation(per_round=4, quorum=quorum, **policy), 10.0, "Repair the cause")
    detector.check(first, 100.0)
    detector.check(second or first, 100.0 + later)


def test_a_quorum_that_cannot_be_reached_any_more_ends_the_run() -> None:
    with pytest.raises(
        RunFailedError,
        match=r"round 2 cannot reach its quorum of 4: 1 of 4 clients failed \(client 3: the loss became nan\)\. Repair",
    ):
        check_twice(shot(1))
    with pytest.raises(RunFailedError, match="client 4: array 'w' holds numbers that are not finite"):
        check_twice(shot(2), quorum=3)
    with pytest.raises(RunFailedError, match="1 of 4 clients failed"):  # nobody is connected to replace it
        check_twice(shot(1, boards=[BoardStatus(agent="pi", clients=[0, 1, 2, 3])]), shortfall="replace")
    with pytest.raises(
        RunFailedError, match=r"80 of 100 clients failed \(such as client 3: the loss .*; client 4: array"
    ):
        check_twice(shot(80, tasks=100), quorum=80)
    with pytest.raises(RunFailedError, match=r"4 clients failed \(clients 0.2: no luck; client 3: too hot\)"):
        check_twice(shot(4, failures={0: "no luck", 1: "no luck", 2: "no luck", 3: "too hot"}))


def test_the_rule_for_a_quorum() -> None:
    assert can_reach_quorum(tasks=4, failing=0, quorum=4)
    assert can_reach_quorum(tasks=4, failing=1, quorum=3)
    assert not can_reach_quorum(tasks=4, failing=1, quorum=4)
    assert can_reach_quorum(tasks=2, failing=0, quorum=4)  # fewer clients were asked than the quorum
    assert not can_reach_quorum(tasks=2, failing=1, quorum=4)
    assert can_reach_quorum(tasks=0, failing=0, quorum=1)  # no exchange is open


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        (shot(), None, {}),
        (shot(1), None, {"quorum": 3}),
        (shot(1), None, {"later": 9.0}),
        (shot(1, boards=[BoardStatus(agent="pi", clients=[0, 1, 2, 3, 4])]), None, {"shortfall": "replace"}),
        (shot(1), shot(1, replies=3), {}),  # there is progress
        (shot(1), shot(0, replies=3), {}),  # it has replied since
        (shot(1), shot(1, exchange=1), {}),
    ],
)
def test_as_long_as_there_is_hope_it_goes_on(first: Snapshot, second: Snapshot | None, more: dict[str, Any]) -> None:
    check_twice(first, second, **more)
