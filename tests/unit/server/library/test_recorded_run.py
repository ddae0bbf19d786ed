"""Run folders in every state: finished, failed, killed, older, damaged, empty."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded_runs import make_round, write_run

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.locking import is_locked, lock_folder
from fedquilt_server.library.recorded_run import find_runs, name_runs, read_run, total_cost
from fedquilt_server.library.run_files import iterate_rows
from fedquilt_server.runs.journal import Journal
from fedquilt_server.runs.run_folder import SIMULATION_LOCK
from fedquilt_server.status.reply_row import ReplyRow


def test_a_finished_run_counts(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert (run.status, run.reason, run.counts, run.seed, run.planned) == ("finished", "", True, 1, 3)


def test_the_start_is_that_of_the_journal(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    journal = Journal(folder / "journal.sqlite")
    journal.set_meta("started_at", "1795300000.5")
    journal.close()
    assert read_run(folder).started == 1795300000.5


def test_a_failed_run_has_its_reason_and_exit_code(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", status="failed", reason="the loss exploded", exit_code=7))
    assert (run.status, run.reason, run.counts) == ("failed", "the loss exploded (exit code 7)", False)


def test_a_run_without_rounds_does_not_count(tmp_path: Path) -> None:
    assert not read_run(write_run(tmp_path / "a", [])).counts


def test_a_run_that_was_killed_is_not_running(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", status="running", exit_code=None)
    assert read_run(folder).status == "interrupted"
    with lock_folder(folder):
        assert read_run(folder).status == "running"
        assert is_locked(folder)
    with lock_folder(folder, name=SIMULATION_LOCK):  # its coordinator has not started yet, or starts again
        assert read_run(folder).status == "running"
    assert not is_locked(folder)
    assert not is_locked(tmp_path / "nowhere")


def test_a_run_of_an_earlier_version_is_finished_if_it_has_all_rounds(tmp_path: Path) -> None:
    older: dict[str, Any] = {"status": "unknown", "exit_code": None}
    assert read_run(write_run(tmp_path / "a", **older)).counts
    part = read_run(write_run(tmp_path / "b", settings={"rounds": 9}, **older))
    assert (part.status, part.counts) == ("unknown", False)
    assert part.reason == "an earlier version recorded 3 of 9 rounds, and not how the run ended"


def test_a_newer_format_is_not_read(tmp_path: Path) -> None:
    """A field may have another meaning."""
    path = write_run(tmp_path / "x") / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    run = read_run(path.parent)
    assert (run.status, run.result) == ("damaged", None)
    assert run.reason.endswith(
        "result.json: format: a newer fedquilt wrote it; this one reads formats up to 2; update this one"
    )


def test_texts_show_what_they_hold(tmp_path: Path) -> None:
    """U+202E would turn round what follows it."""
    run = read_run(write_run(tmp_path / "x", name="a\u202eb", warnings=["<\u202etpircs/>\nround 9"]))
    assert run.result is not None
    assert run.result.name == "a b"
    assert "< tpircs/>\nround 9" in run.notes


def test_the_settings_of_another_run_are_noted(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / f"{seed}", seed=seed) for seed in (1, 2))
    assert read_run(first).notes == ()
    (first / "experiment.yaml").write_bytes((second / "experiment.yaml").read_bytes())
    (note,) = read_run(first).notes
    assert note == f"{first / 'experiment.yaml'} is that of another run: its seed is 2, and the run's 1"


def test_a_damaged_result_is_named_with_its_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "result.json").write_text('{"name": 3')
    run = read_run(folder)
    assert run.status == "damaged"
    assert str(folder / "result.json") in run.reason
    assert run.settings is not None


@pytest.mark.parametrize(
    ("order", "problem"),
    [([2, 1, 0], "round 3 is where round 1 must be"), ([0, 0, 1, 2], "round 1 is where round 2 must be"),
     ([0, 2], "round 3 is where round 2 must be")],
)  # fmt: skip
def test_rounds_that_are_missing_or_not_in_order_are_damage(tmp_path: Path, order: list[int], problem: str) -> None:
    """The last score, sums and means of such a file would be wrong."""
    path = write_run(tmp_path / "a") / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "rounds": [result["rounds"][at] for at in order]}))
    run = read_run(path.parent)
    assert run.status == "damaged"
    assert problem in run.reason


def test_damaged_settings_and_journal_are_notes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "experiment.yaml").write_text("a: [")
    (folder / "journal.sqlite").write_bytes(b"not a database" * 100)
    run = read_run(folder)
    assert (run.status, run.settings, run.started) == ("unknown" if run.result is None else "finished", None, None)
    assert len(run.notes) == 2


def test_impossible_numbers_are_notes(tmp_path: Path) -> None:
    rounds = [make_round(1, 0.5, seconds=-1.0), make_round(2, 0.6, loss=1e308)]
    folder = write_run(tmp_path / "a", rounds=rounds)
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text.replace('"accuracy":0.6', '"accuracy":NaN'))
    run = read_run(folder)
    assert math.isnan(run.rounds[1].accuracy or 0)
    assert run.notes == (
        "accuracy is nan in round 2: not used",
        "loss is 1e+308 in round 2: not used",
        "seconds is -1 in round 1: not used",
    )


def test_a_reply_with_the_loss_of_a_run_that_diverges_is_a_reply(tmp_path: Path) -> None:
    path = tmp_path / "replies.csv"
    path.write_text("round,exchange,client,agent,outcome,loss\n1,0,3,pi,accepted,1.83e+19\n1,0,4,pi,accepted,inf\n")
    notes: list[str] = []
    assert [(row.client, row.loss) for row in iterate_rows(path, ReplyRow, notes)] == [(3, 1.83e19)]
    assert notes == [f"{path}, line 3: loss is inf, which is impossible; the line is left out"]


def test_the_time_without_the_coordinator_is_a_note(tmp_path: Path) -> None:
    rounds = [make_round(1, 0.5, seconds=70.0, away_seconds=50.0), make_round(2, 0.6)]
    run = read_run(write_run(tmp_path / "a", rounds=rounds))
    assert run.notes == ("the coordinator did not run in 50.0 s of the rounds; the times leave this out",)
    assert total_cost(run, "seconds") == 22.0


def test_energy_of_some_boards_only_is_a_note(tmp_path: Path) -> None:
    early, last = {"joules_boards": 1, "joules_boards_missing": 2}, {"joules_boards": 2, "joules_boards_missing": 1}
    rounds = [make_round(1, 0.5, joules=5.0, **early), make_round(2, 0.6, joules=9.0, **last)]
    notes = read_run(write_run(tmp_path / "a", rounds=rounds)).notes
    assert notes == ("the energy is that of 2 of 3 boards; the others report none",)
    all_of_them = [make_round(1, 0.5, joules=5.0, joules_boards=3, joules_boards_missing=0)]
    assert read_run(write_run(tmp_path / "b", rounds=all_of_them)).notes == ()


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    Journal(folder / "journal.sqlite").close()
    assert read_run(folder).status == "interrupted"
    with lock_folder(folder):
        assert read_run(folder).status == "running"


def test_runs_are_found_at_any_depth_and_not_inside_of_each_other(tmp_path: Path) -> None:
    for name in ("b", "a/c", "a/deep/er/d", "b/inside", ".hidden/e"):
        write_run(tmp_path / name)
    write_run(tmp_path / "1/2/3/4/5/6/far")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [str(run.relative_to(tmp_path)) for run in find_runs(tmp_path)] == ["a/c", "a/deep/er/d", "b"]
    assert find_runs(tmp_path / "b") == [tmp_path / "b"]
    with pytest.raises(RunFolderError, match="there is no such folder"):
        find_runs(tmp_path / "nowhere")


def test_labels_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("x/run", "y/run", "other")]
    assert [run.label for run in name_runs([read_run(folder) for folder in folders])] == ["x/run", "y/run", "other"]
    assert len({run.label for run in name_runs([read_run(folders[2])] * 2)}) == 1


def test_a_result_of_a_later_version_with_further_fields_is_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "weather": "fine"}))
    assert read_run(folder).counts
