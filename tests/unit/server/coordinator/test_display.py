"""What the page is told of the machine once an event is dealt with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fedquilt_server.coordinator.display import StatusUpdater
from fedquilt_server.round.machine import Machine
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.snapshot import RunPhase, Snapshot, StatusStore


def show_waiting(phase: RunPhase, exchange: object, finished: bool, awaited: list[int]) -> Snapshot:
    board = StatusStore(Snapshot(phase=phase, awaited=[7]))
    machine = SimpleNamespace(exchange=exchange, finished=finished, awaited=awaited)
    StatusUpdater(board, AgentList()).show_waiting(cast("Machine", machine))
    return board.current


@pytest.mark.parametrize(
    ("before", "exchange", "finished", "awaited", "after"),
    [
        ("evaluating", None, False, [0, 1], "waiting"),  # the quorum left while a round was closed
        ("waiting", None, False, [], "waiting"),
        ("training", object(), False, [3], "training"),
        ("finished", None, True, [], "finished"),
    ],
)
def test_whom_the_run_waits_for(
    before: RunPhase, exchange: object, finished: bool, awaited: list[int], after: RunPhase
) -> None:
    found = show_waiting(before, exchange, finished, awaited)
    assert (found.phase, found.awaited, found.version) == (after, awaited, 1)


def test_nothing_new_is_no_new_version() -> None:
    assert show_waiting("training", object(), False, [7]).version == 0
