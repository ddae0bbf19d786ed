"""The time in which no coordinator ran: rounds have it as ``away_seconds``, and a budget of hours does not count it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.server.round.test_machine import Driver
from tests.unit.server.runs.test_run_folder import answer, opened, record, save, start

from fedquilt_server.round.events import Checkpoint, Resumed
from fedquilt_server.round.policy import Policy
from fedquilt_server.runs import clock
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.results import RoundResult

SetTime = Callable[[float], None]
TWO_CLIENTS = Policy(rounds=2, clients=2, quorum=2)


@pytest.fixture
def set_time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    def set_now(now: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: now)

    set_now(100.0)
    return set_now


def replay(run: ActiveRun) -> list[Checkpoint]:
    """Handle what the journal has since the checkpoint; returns the rounds that this ends."""
    run.restore()
    handled = [command for _, event in run.events_since_checkpoint() for command in run.machine.handle(event)]
    return [command for command in handled if isinstance(command, Checkpoint)]


def resume(run: ActiveRun) -> Resumed:
    event = run.resumed_event()
    record(run, event)
    run.machine.handle(event)
    return event


def finish_round(run: ActiveRun, at: float) -> RoundResult:
    seq, commands = answer(run, 1, 2.0, at)
    (done,) = (command for command in commands if isinstance(command, Checkpoint))
    return save(run, seq, done)[1].row


def test_two_stops_in_a_round_are_in_its_row(tmp_path: Path, set_time: SetTime) -> None:
    with opened(tmp_path, resume=False) as run:
        start(run)
        answer(run, 0, 1.0, 110.0)
        run.note_alive(130.0, force=True)
    set_time(500.0)
    with opened(tmp_path) as run:
        replay(run)
        assert resume(run).away == 370.0
    set_time(600.0)
    with opened(tmp_path) as run:
        replay(run)
        assert resume(run).away == 100.0
        set_time(605.0)
        row = finish_round(run, 604.0)
    assert (row.seconds, row.away_seconds) == (505.0, 470.0)
    with opened(tmp_path) as run:
        assert run.folder.journal.results() == [row]


def test_the_row_of_a_round_that_a_recovery_ends_has_the_time_before(tmp_path: Path, set_time: SetTime) -> None:
    with opened(tmp_path, resume=False) as run:
        start(run)
        answer(run, 0, 1.0, 110.0)
        seq, _ = answer(run, 1, 2.0, 112.0)  # the process is killed before the checkpoint
    set_time(500.0)
    with opened(tmp_path) as run:
        (done,) = replay(run)
        state, saved = save(run, seq, done)
        assert (saved.row.seconds, saved.row.away_seconds) == (400.0, 388.0)
        run.machine.proceed(state, saved.at)
        assert resume(run).away == 0.0


def test_a_running_coordinator_is_noted_from_time_to_time(tmp_path: Path, set_time: SetTime) -> None:
    with opened(tmp_path, resume=False) as run:
        start(run)
        journal = run.folder.journal
        for now, noted in ((101.0, 101.0), (105.0, 101.0), (111.0, 111.0)):
            run.note_alive(now)
            assert journal.last_moment() == noted
        run.note_alive(112.0, force=True)
        assert journal.last_moment() == 112.0
        answer(run, 0, 1.0, 113.0)
        assert journal.last_moment() == 113.0


def test_time_before_a_round_opens_is_not_in_it() -> None:
    driver = Driver(TWO_CLIENTS)
    driver.do(Resumed(50, away=40))
    driver.join(60, 0, 1)
    driver.reply(61, 0)
    driver.do(Resumed(75, away=10))
    driver.reply(80, 1)
    driver.reply(81, 0, round=2)
    driver.reply(82, 1, round=2)
    assert [done.tally.away_seconds for done in driver.checkpoints] == [10, 0]


def test_a_round_that_starts_again_keeps_its_time() -> None:
    driver = Driver(TWO_CLIENTS)
    driver.join(0, 0, 1)
    driver.do(Resumed(50, away=40))
    driver.do(driver.machine.restart_event(51, "damaged"))
    driver.reply(60, 0)
    driver.reply(61, 1)
    (done,) = driver.checkpoints
    assert (done.tally.opened_at, done.tally.away_seconds) == (0, 40)


def test_a_clock_that_is_behind_goes_on_from_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Raspberry Pi without a clock battery starts in the past: the open round would have taken no time."""
    with opened(tmp_path, resume=False) as run:
        start(run)
        answer(run, 0, 1.0, clock.now())
        run.note_alive(clock.now(), force=True)
        last = run.folder.journal.last_moment()
    monkeypatch.setattr(clock, "_ORIGIN", clock._Moment(last - 86_400, time.monotonic()))
    with opened(tmp_path) as run:
        replay(run)
        event = resume(run)
        assert event.at >= last
        assert event.away < 3600
    assert "clock is 24 h 00 min behind the run" in caplog.text
