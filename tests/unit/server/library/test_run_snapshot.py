"""A recorded run as the page shows it: all parts from its files, and a damaged file costs only its part."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support.example_runs import coverage, running
from tests.support.recorded_runs import make_round, near, write_boards, write_run

from fedquilt_common.files.locking import lock_folder
from fedquilt_server.history.history import ROUNDS_KEPT
from fedquilt_server.library import run_files, run_reader
from fedquilt_server.library.run_files import iterate_latest_rows
from fedquilt_server.library.run_reader import RunReader
from fedquilt_server.library.run_snapshot import LAGGING, read_snapshot
from fedquilt_server.runs.page_address import PageAddress, note_page
from fedquilt_server.runs.tables import boards_csv
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import BoardStatus, StatusStore
from fedquilt_server.web.cells import format_cells
from fedquilt_server.web.server import PageServer
from fedquilt_server.web.view import summarise, summarise_results

ROUNDS = 20


@pytest.fixture(autouse=True)
def _patient_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a run may take any time to answer."""
    monkeypatch.setattr(run_reader, "PAGE_SECONDS", 60.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a finished run with all its files."""
    run = write_run(tmp_path / "digits", [0.1 + 0.04 * number for number in range(ROUNDS)])
    write_boards(run, {"strong-1": [0, 1], "weak-1": [2]}, ROUNDS)
    boards = [BoardStatus(agent="strong-1", kind="strong", clients=[0, 1], accepted=40, temperature=51.5),
              BoardStatus(agent="weak-1", kind="weak", clients=[2], health="hot", reason="81 °C")]  # fmt: skip
    (run / "boards.csv").write_text(boards_csv(boards))
    events = [RunEvent(at=float(at), kind="joined", board="weak-1", text=f"event {at}") for at in range(300)]
    (run / "events.jsonl").write_text("".join(event.model_dump_json() + "\n" for event in events))
    return run


def test_every_file_has_its_part(folder: Path) -> None:
    shown = read_snapshot(folder)
    assert (shown.name, shown.algorithm, shown.dataset, shown.phase) == ("digits", "fedavg", "digits", "finished")
    assert (shown.round, shown.rounds, len(shown.history)) == (ROUNDS, ROUNDS, ROUNDS)
    assert [(b.agent, b.kind, b.health, b.clients, b.accepted) for b in shown.boards] == [
        ("strong-1", "strong", "online", [0, 1], 40),
        ("weak-1", "weak", "hot", [2], 0),
    ]
    assert shown.boards[0].temperature == near(51.5)
    assert {row.round for row in shown.reply_rows} == set(range(ROUNDS - ROUNDS_KEPT + 1, ROUNDS + 1))
    assert [event.text for event in shown.events[:2]] == ["event 299", "event 298"]
    assert len(shown.events) == 200
    assert shown.coverage is not None
    assert sum(shown.coverage.layers[0].latest) == 16
    assert shown.recorded
    assert shown.notes == []


@pytest.mark.parametrize("name", ["boards.csv", "replies.csv", "events.jsonl", "coverage.json", "experiment.yaml"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00\n\xff\n", b'{"a": [1, \n{{{'])
def test_a_damaged_file_costs_only_its_part(name: str, content: bytes | None, folder: Path) -> None:
    whole = read_snapshot(folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    shown = read_snapshot(folder)
    assert shown.history == whole.history
    assert shown.phase == "finished"
    parts = {"boards.csv": "boards", "replies.csv": "reply_rows", "events.jsonl": "events", "coverage.json": "coverage"}
    kept = {"boards", "reply_rows", "events", "coverage"} - {parts.get(name, "")}
    if name == "replies.csv":
        kept.discard("boards")  # their clients come from there
    for part in kept:
        assert getattr(shown, part) == getattr(whole, part), part
    if content not in (None, b"") or (name in ("boards.csv", "replies.csv", "events.jsonl") and content is None):
        assert any(name in note for note in shown.notes), shown.notes


@pytest.mark.parametrize(
    ("name", "line", "place"),
    [
        ("events.jsonl", "gar,bage\x01{", "line 301: "),
        ("events.jsonl", '{"at": 1, "kind": "unheard of", "text": "x"}', "line 301: kind"),
        ("boards.csv", "gar,bage\x01{", "line 4: it does not have as many cells as the header"),
        ("replies.csv", "1,0,1,weak-1", "line 62: it does not have as many cells as the header"),
    ],
)
def test_a_damaged_line_costs_only_itself_and_is_named(name: str, line: str, place: str, folder: Path) -> None:
    whole = read_snapshot(folder)
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")
    shown = read_snapshot(folder)
    (note,) = shown.notes
    assert f"{name}, {place}" in note
    assert note.endswith("the line is left out")
    assert (shown.boards, shown.events, shown.reply_rows) == (whole.boards, whole.events, whole.reply_rows)


@pytest.mark.parametrize(
    ("budget", "shown"), [({"bytes": 120_000}, ["60.0 kB of 120 kB"]), ({"bytes": -1}, []), ("much", []), (None, [])]
)
def test_what_a_run_used_of_its_budget(budget: object, shown: list[str], tmp_path: Path) -> None:
    run = write_run(tmp_path / "digits", [0.5] * ROUNDS, settings={"budget": budget})
    assert [use.text for use in read_snapshot(run).budget] == shown


def test_without_the_list_of_boards_those_that_replied_are_shown(folder: Path) -> None:
    (folder / "boards.csv").unlink()
    assert [(board.agent, board.clients) for board in read_snapshot(folder).boards] == [
        ("strong-1", [0, 1]),
        ("weak-1", [2]),
    ]


def test_clients_that_no_round_has_asked_lately_are_counted(folder: Path) -> None:
    boards = [BoardStatus(agent="strong-1", clients=list(range(150))), BoardStatus(agent="weak-1", clients=[2, 3])]
    (folder / "boards.csv").write_text(boards_csv(boards))
    shown = read_snapshot(folder)
    assert [(board.clients, board.unnamed_clients) for board in shown.boards] == [([0, 1], 148), ([2], 1)]
    assert summarise(shown, summarise_results(shown.history)).clients == 152
    assert [format_cells(board)["clients"] for board in shown.boards] == ["0\N{EN DASH}1 and 148 more", "2 and 1 more"]


def test_a_client_belongs_to_the_board_of_its_newest_reply(folder: Path) -> None:
    header, *rows = (folder / "replies.csv").read_text().splitlines()
    early, moved = (rows[2].replace("weak-1", agent) for agent in ("strong-1", "weak-1"))
    (folder / "replies.csv").write_text("\n".join([header, rows[0], rows[1], early, moved, ""]))
    assert [board.clients for board in read_snapshot(folder).boards] == [[0, 1], [2]]


def test_a_damaged_result_leaves_the_names_of_the_experiment(folder: Path) -> None:
    (folder / "result.json").write_text('{"name": 3')
    shown = read_snapshot(folder)
    assert (shown.phase, shown.name, shown.algorithm, shown.rounds) == ("damaged", "digits", "fedavg", ROUNDS)
    assert "result.json: is damaged" in shown.message
    assert len(shown.boards) == 2


@pytest.mark.parametrize(
    ("status", "phase", "words"),
    [("failed", "failed", "the loss is nan (exit code 7)"), ("stopped", "stopped", "the loss is nan"),
     ("running", "interrupted", "the coordinator was killed"), ("unknown", "unknown", "an earlier version")],
)  # fmt: skip
def test_how_the_run_ended(status: str, phase: str, words: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", settings={"rounds": 9}, status=status, reason="the loss is nan", exit_code=7)
    shown = read_snapshot(run)
    assert shown.phase == phase
    assert words in shown.message


def test_what_the_page_shows_elsewhere_is_no_note(tmp_path: Path) -> None:
    rows = [make_round(1, 0.5, joules=3.0, joules_estimated=True), make_round(2, 0.5, loss=-1.0)]
    shown = read_snapshot(write_run(tmp_path / "x", rounds=rows, warnings=["the loss exploded", "and again"]))
    assert shown.warning == "the loss exploded"
    assert "and again" in shown.notes
    assert any("loss is -1 in round 2" in note for note in shown.notes)
    assert not any("estimated" in note or "exploded" in note for note in shown.notes)


def test_names_that_no_encoding_has_can_be_shown(tmp_path: Path) -> None:
    run = tmp_path / os.fsdecode(b"digits-\xff")
    write_run(run, run="x")
    (run / "result.json").write_text("{")
    assert "digits-" in read_snapshot(run).model_dump_json()


def test_only_the_end_of_a_long_table_is_read(folder: Path) -> None:
    notes: list[str] = []
    path = folder / "replies.csv"
    rows = list(iterate_latest_rows(path, ReplyRow, notes, most_bytes=1000))
    assert 1 < len(rows) < 20
    assert (rows[-1].round, rows[-1].client) == (ROUNDS, 2)
    assert notes == []
    with path.open("a") as file:
        file.write("x" * 10 + "\n21,0,1,weak-1")  # a damaged line, and one that is being written
    rows = list(iterate_latest_rows(path, ReplyRow, notes, most_bytes=1000))
    assert rows[-1].round == ROUNDS
    assert len(notes) == 1
    assert "after byte" in notes[0]
    assert notes[0].endswith("the line is left out")


def test_wrong_counts_of_the_last_round_do_not_cost_the_coverage(tmp_path: Path) -> None:
    found = coverage(running().boards).model_dump()
    found["layers"][0]["latest"] = [-1]
    (tmp_path / "coverage.json").write_text(json.dumps(found))
    kept = run_files.read_coverage(tmp_path / "coverage.json", [])
    assert kept is not None
    assert kept.layers[0].latest == []
    assert kept.layers[1].latest == found["layers"][1]["latest"]


# --- the reader ----------------------------------------------------------------------------------------------


def test_files_are_read_again_when_one_of_them_changes(folder: Path) -> None:
    reader = RunReader(folder)
    assert reader.read() is not None
    assert reader.read() is None
    (folder / "events.jsonl").write_text("")
    shown = reader.read()
    assert shown is not None
    assert shown.events == []


def test_a_run_that_goes_on_is_read_from_its_page_while_that_answers(folder: Path) -> None:
    now = running()
    with lock_folder(folder), PageServer(StatusStore(now)) as server:
        assert read_snapshot(folder).recorded
        note_page(folder, PageAddress(url=server.url, run=now.run))
        reader = RunReader(folder)
        live = reader.read()
        assert live is not None
        assert (live.phase, live.recorded, live.round, len(live.history)) == ("training", False, 21, 20)
        assert len(live.reply_rows) == len(now.reply_rows)
        assert live.coverage is not None
        assert live.coverage.layers[0].name == "conv1"
        assert reader.read() is None
        server.stop()
        after = reader.read()
        assert after is not None
        assert after.recorded
    reader.close()


def test_a_running_run_without_a_page_has_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", status="running", settings={"rounds": 9})
    with lock_folder(run):
        shown = read_snapshot(run)
    assert shown.phase == "training"
    assert shown.notes[0] == LAGGING


def test_replies_of_finished_rounds_stay_when_the_page_sends_only_new_ones(folder: Path) -> None:
    now = running()
    store = StatusStore(now)
    with lock_folder(folder), PageServer(store) as server:
        note_page(folder, PageAddress(url=server.url, run=now.run))
        reader = RunReader(folder)
        reader.read()
        store.update(replies=3)
        shown = reader.read()
        reader.close()
    assert shown is not None
    assert [row.round for row in shown.reply_rows] == [row.round for row in now.reply_rows]
