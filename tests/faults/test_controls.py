"""A person pauses, stops and continues a run, and drops a board; all of it holds after a crash."""

from __future__ import annotations

import csv
import time
from typing import TYPE_CHECKING

import pytest

from fedquilt_server.history.log_files import read_events
from fedquilt_server.status.control import Action, ControlRequest

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Stage

    from fedquilt_server.coordinator.coordinator import Coordinator


def ask(coordinator: Coordinator, action: Action, board: str = "") -> None:
    coordinator._requests.put(ControlRequest(action, board))


def kinds(stage: Stage) -> list[str]:
    return [event.kind for event in read_events(stage.folder / "events.jsonl")]


def test_a_pause_holds_after_a_crash_and_changes_nothing_in_the_model(stage: Stage, undisturbed: str) -> None:
    first = stage.coordinator()
    ask(first, "pause")
    stage.arrive()
    turns = iter(range(6))
    with stage.closing(first):
        first.execute(lambda: stage.turn() or next(turns, None) is None)  # and then the process is gone
    assert (first.machine.paused, first.machine.exchange, first.machine.done) == (True, None, 0)
    assert stage.board.current.paused
    second = stage.coordinator()
    waits = iter(range(6))

    def turn() -> bool:
        if next(waits, None) is None and second.machine.paused:
            assert second.machine.done == 0
            ask(second, "continue")
        return stage.turn()

    with stage.closing(second):
        second.execute(turn)
    assert stage.sha256 == undisturbed
    assert [kind for kind in kinds(stage) if kind in ("paused", "continued")] == ["paused", "continued"]


def test_a_run_that_is_stopped_ends_after_its_round_and_can_be_resumed(stage: Stage, undisturbed: str) -> None:
    first = stage.coordinator()
    stage.arrive()

    def turn() -> bool:
        if first.machine.exchange is not None and not first.machine.paused:
            ask(first, "stop")
            ask(first, "stop")
        return stage.turn() if first.machine.paused else False

    with stage.closing(first):
        first.execute(turn)
    assert (first.was_stopped, first.machine.done) == (True, 1)
    assert [kind for kind in kinds(stage) if kind in ("paused", "stopping")] == ["stopping"]
    second = stage.coordinator()
    with stage.closing(second):
        second.execute(stage.turn)
    assert stage.sha256 == undisturbed


def test_a_dropped_board_hosts_nothing_until_it_is_readmitted(stage: Stage, undisturbed: str) -> None:
    first = stage.coordinator()
    stage.arrive()

    def drop() -> bool:
        if "jetson" in first.machine.agents:
            ask(first, "drop", "jetson")
        return "left" in kinds(stage)

    with stage.closing(first):
        first.execute(drop)
    second = stage.coordinator()
    reported, asked = time.monotonic(), 0

    def readmit() -> bool:
        nonlocal reported, asked
        if time.monotonic() > reported + 0.2:
            reported = time.monotonic()
            for player in stage.players.values():
                player.report()
            assert ("jetson" in second.machine.agents) <= (asked > 2)
            asked += 1
            if asked == 3:
                assert {board.agent: board.health for board in stage.board.current.boards}["jetson"] == "dropped"
                ask(second, "readmit", "jetson")
        return stage.offer()

    with stage.closing(second):
        second.execute(readmit)
    assert stage.sha256 == undisturbed
    assert [kind for kind in kinds(stage) if kind in ("dropped", "readmitted")] == ["dropped", "readmitted"]


def test_the_last_replies_and_the_end_are_shown_when_the_run_is_over(stage: Stage) -> None:
    stage.play()
    shown = stage.board.current
    assert (shown.accepted, {board.agent: board.accepted for board in shown.boards}) == (6, {"pi": 4, "jetson": 2})
    assert shown.events[0].kind == "finished"
    rows = list(csv.DictReader((stage.folder / "boards.csv").read_text().splitlines()))
    assert {row["agent"]: row["accepted"] for row in rows} == {"pi": "4", "jetson": "2"}
