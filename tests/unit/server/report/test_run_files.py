"""Readers of replies.csv, telemetry.csv and coverage.json, also of damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded_runs import START, reply, write_table

from fedquilt_common.files.locking import lock_folder
from fedquilt_server.library.run_files import ReplyPhases, iterate_rows, read_coverage, reply_phases
from fedquilt_server.report.board_totals import LATEST_ROUNDS, read_boards
from fedquilt_server.status.reply_row import ReplyRow


def read(path: Path) -> tuple[list[ReplyRow], list[str]]:
    notes = list[str]()
    return list(iterate_rows(path, ReplyRow, notes)), notes


def test_a_missing_file_has_no_rows_and_nothing_wrong(tmp_path: Path) -> None:
    assert read(tmp_path / "replies.csv") == ([], [])
    assert read_coverage(tmp_path / "coverage.json", []) is None
    assert read_boards(tmp_path).has_replies is False


def test_empty_cells_are_unknown_and_further_columns_are_ignored(tmp_path: Path) -> None:
    path = write_table(tmp_path / "replies.csv", [{**reply("pi", 3, 1), "joules": "", "loss": "", "new": "x"}])
    rows, notes = read(path)
    assert notes == []
    assert (rows[0].client, rows[0].joules, rows[0].loss, rows[0].bytes) == (3, None, None, 1000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": "x"}, "round 'x': "),
        ({"accuracy": "nan"}, "accuracy is nan, which is impossible"),
        ({"accuracy": "1.5"}, "accuracy is 1.5, which is impossible"),
        ({"train_seconds": "-3"}, "train_seconds is -3, which is impossible"),
        ({"opened_at": "1e300"}, "opened_at is 1e+300, which is impossible"),
        ({"outcome": "eaten"}, "outcome 'eaten': "),
        ({"agent": ""}, "agent: "),
        ({"agent": "x" * 300}, "agent is longer than 200 characters"),
    ],
)
def test_a_damaged_row_is_left_out_and_named_with_its_line(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "replies.csv", [reply("a", 0, 1), {**reply("b", 1, 1), **changes}, reply("c", 2, 1)])
    rows, notes = read(path)
    assert [row.agent for row in rows] == ["a", "c"]
    assert len(notes) == 1
    assert notes[0].startswith(f"{path}, line 3: {words}")
    assert notes[0].endswith("the line is left out")


def test_a_last_line_without_an_end_is_ignored(tmp_path: Path) -> None:
    """A number at its end may lack digits."""
    path = write_table(tmp_path / "replies.csv", [reply("a", 0, 1), reply("b", 1, 1)])
    path.write_text(path.read_text().rstrip("\n"))
    with lock_folder(tmp_path):
        rows, notes = read(path)
        assert ([row.agent for row in rows], notes) == (["a"], [])
    rows, notes = read(path)  # nobody is writing it
    assert [row.agent for row in rows] == ["a"]
    assert notes == [f"{path}: its last line has no end, so it is left out; further lines may be missing"]


def test_many_damaged_rows_are_counted(tmp_path: Path) -> None:
    path = write_table(tmp_path / "replies.csv", [reply("a", 0, 1)] + [reply("b", 1, -1)] * 9)
    rows, notes = read(path)
    assert (len(rows), len(notes)) == (1, 4)
    assert notes[-1] == f"{path}: 6 further lines are damaged and left out"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"round,agent\n1", b"a" * 200_000, b'round,agent\n"1,x'])
def test_what_is_no_table_gives_notes_and_no_traceback(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "replies.csv"
    path.write_bytes(content)
    assert read(path)[0] == []


def test_the_phases_of_a_reply() -> None:
    row = ReplyRow.model_validate({k: v for k, v in reply("a", 0, 1).items() if v != ""})
    at = START + 10
    assert reply_phases(row) == ReplyPhases(at, at + 1, at + 4, at + 5, at + 6)
    late = row.model_copy(update={"arrived_at": at + 9})
    assert reply_phases(late) == ReplyPhases(at, at + 1, at + 4, at + 9, at + 9)
    long = row.model_copy(update={"train_seconds": 100.0})
    assert reply_phases(long) == ReplyPhases(at, at, at + 4, at + 5, at + 6)


@pytest.mark.parametrize(
    "changes", [{"opened_at": None}, {"train_seconds": None}, {"began_at": 0.0}, {"arrived_at": 0.0}]
)
def test_phases_with_unknown_or_impossible_times_are_not_drawn(changes: dict[str, Any]) -> None:
    row = ReplyRow.model_validate({k: v for k, v in reply("a", 0, 1).items() if v != ""})
    assert reply_phases(row.model_copy(update=changes)) is None


def test_totals_of_boards_are_in_natural_order(tmp_path: Path) -> None:
    rows = [reply("weak-10", 0, 1), reply("weak-2", 1, 1), reply("weak-2", 2, 1, outcome="late", joules="")]
    write_table(tmp_path / "replies.csv", rows)
    samples = [{"time": 1, "board": "weak-2", "temperature": t, "power": 4, "joules": 10} for t in (50, 61)]
    write_table(tmp_path / "telemetry.csv", samples)
    states = [{"agent": "weak-2", "joules": 30, "power_source": "meter"}, {"agent": "new", "joules": 1}]
    write_table(tmp_path / "boards.csv", states)
    history = read_boards(tmp_path)
    assert [board.board for board in history.boards] == ["weak-2", "weak-10"]
    board = history.boards[0]
    assert (board.outcomes["accepted"], board.outcomes["late"]) == (1, 1)
    assert (board.train_seconds, board.bytes, board.train_joules) == (6.0, 2000.0, 12.0)
    assert (board.joules, board.power_source) == (30.0, "meter")
    assert (board.temperature, board.memory_peak) == (61.0, 5e8)


def test_only_the_latest_rounds_are_kept_for_the_timeline(tmp_path: Path) -> None:
    write_table(tmp_path / "replies.csv", [reply("a", 0, number, accuracy=number / 100) for number in range(1, 20)])
    history = read_boards(tmp_path)
    assert [row.round for row in history.latest] == list(range(20 - LATEST_ROUNDS, 20))
    assert history.client_accuracy == {0: 0.19}


def test_a_reply_that_does_not_count_gives_no_accuracy(tmp_path: Path) -> None:
    write_table(tmp_path / "replies.csv", [reply("a", 0, 1, accuracy=0.5), reply("a", 0, 2, outcome="rejected")])
    assert read_boards(tmp_path).client_accuracy == {0: 0.5}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "Expecting value"),
        ("[]", "must be a section"),
        ('{"rounds": 1, "layers": [{"name": "a", "counts": [-1]}]}', "a count below 0"),
        ('{"rounds": 1, "layers": [{"name": "a", "counts": [1], "boards": {"x": 2}}]}', "not within 0 and 1"),
        ('{"rounds": 1, "layers": [{"name": "a", "counts": [1], "boards": {"x": NaN}}]}', "not within 0 and 1"),
        ("[" * 100_000, ""),
    ],
)
def test_damaged_coverage_is_named(content: str, words: str, tmp_path: Path) -> None:
    path, notes = tmp_path / "coverage.json", list[str]()
    path.write_text(content)
    assert read_coverage(path, notes) is None
    assert len(notes) == 1
    assert words in notes[0]


def test_coverage_needs_no_counts_of_the_last_round(tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"rounds": 2, "layers": [{"name": "fc1", "counts": [2, 0], "boards": {"a": 0.5}}]}))
    found = read_coverage(path, [])
    assert found is not None
    assert (found.layers[0].counts, found.layers[0].boards) == ([2, 0], {"a": 0.5})
