"""What the page is told of the machine once an event is dealt with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.server.runs.test_run_folder import answer, opened, start

from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.coordinator.display import StatusUpdater
from fedquilt_server.round.events import Checkpoint
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.snapshot import BoardStatus, RunPhase, Snapshot, StatusStore


def show_waiting(phase: RunPhase, exchange: object, finished: bool, awaited: list[int]) -> Snapshot:
    board = StatusStore(Snapshot(phase=phase, awaited=[7], deadline=9.0))
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
    assert found.deadline == (None if after == "waiting" else 9.0)


def test_an_exchange_that_has_closed_has_no_deadline() -> None:
    board = StatusStore(Snapshot(phase="training", deadline=9.0))
    StatusUpdater(board, AgentList()).show_averaging()
    assert (board.current.phase, board.current.deadline) == ("averaging", None)


def test_nothing_new_is_no_new_version() -> None:
    assert show_waiting("training", object(), False, [7]).version == 0


def report_energy(agents: AgentList, at: float, joules: float, *, name: str = "pi", source: str = "estimate") -> None:
    agents.update_presence(AgentPresence(agent=name, online=True, boot=1), at)
    agents.update_telemetry(Telemetry(agent=name, boot=1, joules=joules, power=0.0, power_source=source), at)


def test_the_energy_of_the_rounds_is_the_energy_of_the_boards() -> None:
    agents = AgentList()
    display = StatusUpdater(StatusStore(Snapshot()), agents)
    assert display.take_energy() == {"joules": None}
    report_energy(agents, 0.0, 100.0)
    report_energy(agents, 1.0, 107.0)
    boards = {"joules_boards": 1, "joules_boards_missing": 0}
    assert display.take_energy() == {"joules": 7.0, "joules_estimated": True, "joules_measured": False, **boards}
    agents.update_presence(AgentPresence(agent="silent", online=True, boot=1), 1.0)
    agents.update_presence(AgentPresence(agent="hall-relay", online=True, boot=1, site_relay=True), 1.0)
    report_energy(agents, 1.0, 10.0, name="jetson", source="sensor")
    report_energy(agents, 2.0, 15.0, name="jetson", source="sensor")
    boards = {"joules_boards": 2, "joules_boards_missing": 1}
    assert display.take_energy() == {"joules": 5.0, "joules_estimated": True, "joules_measured": True, **boards}
    assert sum(board.joules or 0.0 for board in display.boards) == 12.0


def test_the_energy_of_a_resumed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: 200.0)
    with opened(tmp_path) as run:
        start(run)
        answer(run, 0, 1.0, 110.0)
        seq, (_, done) = answer(run, 1, 1.0, 111.0)
        assert isinstance(done, Checkpoint)
        run.save_round(seq, done, run.write_state(done.state), {}, {"joules": 30.0})
        run.history.add_telemetry(BoardStatus(agent="pi", joules=42.0), 120.0)
        run.history.flush(force=True)
    with opened(tmp_path) as run:
        agents = AgentList()
        display = StatusUpdater(StatusStore(Snapshot()), agents)
        display.start(run)
        before = {"joules": 12.0, "joules_estimated": False, "joules_measured": False}  # the coordinator stopped
        assert display.take_energy() == {**before, "joules_boards": 1, "joules_boards_missing": 0}
        report_energy(agents, 200.0, 5000.0)
        report_energy(agents, 201.0, 5003.0)
        assert display.take_energy()["joules"] == 3.0
        assert [board.joules for board in display.boards] == [45.0]
