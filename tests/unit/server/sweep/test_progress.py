"""What a sweep shows: a block of 80 columns in a terminal, plain lines in a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.sweep import progress as module
from fedquilt_server.sweep.manifest import SweptRun
from fedquilt_server.sweep.plan import SweepPlan, first_states, plan_sweep
from fedquilt_server.sweep.progress import SweepProgress, SweepRounds, describe_open_round, shorten
from fedquilt_server.sweep.sweep_file import source_of, vary

DIGITS = {
    "name": "digits", "rounds": 20, "data": {"set": "digits", "clients": 8}, "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
}  # fmt: skip
WIDTH = 80


def plan(folder: Path, seeds: Sequence[int] = (1, 2, 3)) -> SweepPlan:
    return plan_sweep(vary(source_of(DIGITS, "digits.yaml", ""), {"seed": seeds}, ""), (), folder)


def rounds(number: int) -> Snapshot:
    row = RoundResult.model_construct(round=number)
    return Snapshot(phase="training", round=number + 1, rounds=20).model_copy(update={"history": [row] * number})


def ended(states: Sequence[SweptRun], index: int, status: str, reason: str = "") -> SweptRun:
    return states[index].model_copy(update={"status": status, "reason": reason})


def shown(folder: Path, *, terminal: bool, color: bool = True) -> str:
    """Let three runs end in three ways; returns what was printed."""
    text = io.StringIO()
    console = Console(
        file=text, width=WIDTH, force_terminal=terminal, no_color=not color, color_system="256", legacy_windows=False
    )
    made = plan(folder)
    states = first_states(made)
    with SweepProgress(console=console) as progress:
        progress.begin(made, states)
        for index in (0, 1):
            progress.note_start(index, "http://127.0.0.1:1/")
        progress.show({0: None, 1: rounds(5)})
        progress.note_end(0, ended(states, 0, "failed", "the loss became nan\nmore lines"))
        progress.note_end(1, ended(states, 1, "finished"))
        progress.note_start(2, "http://127.0.0.1:2/")
        progress.show({2: rounds(12)})
        progress.note_stop(1)
        progress.note_end(2, ended(states, 2, "stopped", "interrupted"))
    return text.getvalue()


def test_a_pipe_gets_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "whole_duration", lambda seconds: "TIME")
    assert shown(tmp_path, terminal=False).splitlines() == [
        f"digits-sweep: 3 runs in {tmp_path}",
        "[1/3] seed=1: failed: the loss became nan",
        "[2/3] seed=2: finished in TIME, about TIME left",
        "Stopping 1 run; press Ctrl-C again to end at once",
        "seed=3: stopped",
    ]


def test_a_terminal_shows_each_active_run_in_80_columns(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=True, color=False)
    for words in ("0/3 runs", "starting    seed=1", "round 6/20  seed=2", "2/3 runs, 1 failed", "round 13/20  seed=3"):
        assert words in text
    assert "\x1b[38" not in text


def test_long_labels_fit_a_narrow_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, force_terminal=True, no_color=True)
    made = plan(tmp_path)
    states = [state.model_copy(update={"label": "an_axis_with_a_long_name=" * 10}) for state in first_states(made)]
    progress = SweepProgress(console=console)
    progress.begin(made, states)
    text.truncate(0)
    console.print(progress.block({index: rounds(index) for index in range(3)}))
    lines = text.getvalue().replace("\0", "").splitlines()
    assert len(lines) == 4
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[-1].startswith("  round 3/20  an_axis_with")


def test_it_can_be_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(tmp_path)
    with SweepProgress(enabled=False) as progress:
        progress.begin(made, first_states(made))
        progress.note_stop(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (None, "starting"),
        (rounds(3), "round 4/20"),
        (Snapshot(phase="waiting", broker_connected=True, awaited=[0, 1, 2], rounds=20), "Waiting for clients 0"),
    ],
)
def test_the_place_of_a_run(snapshot: Snapshot | None, words: str) -> None:
    assert describe_open_round(snapshot).startswith(words)


def test_the_end_is_estimated_from_the_rounds_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    counts = SweepRounds([10, 10, 10], [10, 4, 0])
    assert counts.seconds_left() is None
    now[0] += 12
    counts.reach(1, 7)
    assert (counts.done, counts.total, counts.seconds_left()) == (17, 30, 12 / 3 * 13)
    counts.end(1, finished=False)
    assert (counts.done, counts.total) == (17, 27)
    counts.end(2, finished=True)
    assert counts.seconds_left() == 0


def test_a_reason_takes_one_line() -> None:
    assert shorten("a\nb") == "a"
    assert len(shorten("x" * 1000)) == module.LONGEST_REASON
