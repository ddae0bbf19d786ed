"""The history of a run: its replies and events, the same after a restart of the coordinator."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from fedquilt_server.history.event_book import EventBook
from fedquilt_server.history.history import History
from fedquilt_server.history.log_files import EventFile
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied, Resumed, RoundRestarted, Ticked
from fedquilt_server.runs.tables import rounds_csv
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import EventKind
from fedquilt_server.status.snapshot import BoardStatus
from fedquilt_server.status.training_memory import TrainingMemory

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
METRICS = {"loss": 0.5, "accuracy": 0.75, "train_seconds": 1.5, "memory_peak": 2.0**20, "joules": 12.5, "steps": 3.0}


def reply(at: float, client: int, exchange: int = 0, round: int = 1) -> Replied:
    return Replied(at, f"pi-{client}", client, round, exchange, "ab", 30.0, METRICS, 640, at - 0.25)


def finished(round: int, seconds: float, **values: object) -> RoundResult:
    return RoundResult.model_validate({**ZEROS, "round": round, "seconds": seconds, **values})


EVENTS: list[Event] = [
    Joined(1.0, "pi-0", 3, (0,)),
    Joined(2.0, "pi-1", 1, (1, 2)),
    reply(5.0, 0),
    Rejected(6.0, "pi-1", 1, 1, "too long", failed=True),
    Ticked(7.0),
    reply(8.0, 0, exchange=1),
    # round 2 from here on
    Left(11.0, "pi-0", 3),
    Left(11.5, "pi-0", 3),
    Joined(12.0, "pi-0", 3, (0,)),
    Joined(13.0, "pi-0", 4, (0,)),
    Rejected(14.0, "pi-1", 1, 1, "round 1 is closed", "late"),
    Rejected(14.5, "pi-1", 1, 1, "counted before", "duplicate"),
    Resumed(15.0),
]
MISSING = {"0": {1: "pi-1"}}
ROUND_1 = (6, 10.0, finished(1, 8.0, missing=MISSING, trained={"0": 0.5}))


def written(folder: Path) -> tuple[list[dict[str, str]], list[dict[str, object]]]:
    replies = list(csv.DictReader((folder / "replies.csv").read_text().splitlines()))
    return replies, [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def play(folder: Path, *, kept: int = 0) -> History:
    """Take all events; the coordinator starts again after the first ``kept`` ones."""
    stored = list(enumerate(EVENTS, 1))
    history = History(folder, [ROUND_1] if kept >= ROUND_1[0] else [], stored[:kept])
    for seq, event in stored[kept:]:
        if seq == ROUND_1[0] + 1 and kept < ROUND_1[0]:
            history.close_round(ROUND_1[2], ROUND_1[1])
        history.take(seq, event)
    return history


def test_a_reply_has_a_row_with_its_times_and_what_it_measured(tmp_path: Path) -> None:
    play(tmp_path)
    first, refused, second, missing = written(tmp_path)[0]
    assert [first[name] for name in ("round", "exchange", "client", "agent", "level", "outcome")] == [
        "1", "0", "0", "pi-0", "0.5", "accepted",
    ]  # fmt: skip
    assert [float(first[name]) for name in ("opened_at", "began_at", "arrived_at", "closed_at")] == [2, 4.75, 5, 7]
    measured = ("samples", "loss", "accuracy", "train_seconds", "bytes", "memory_peak", "joules")
    assert [float(first[name]) for name in measured] == [30, 0.5, 0.75, 1.5, 640, 2**20, 12.5]
    assert [float(second[name]) for name in ("opened_at", "closed_at")] == [7, 8]
    assert (refused["outcome"], refused["agent"], refused["exchange"]) == ("rejected", "pi-1", "")
    assert (missing["outcome"], missing["client"], missing["agent"]) == ("missing", "1", "pi-1")
    assert (float(missing["opened_at"]), float(missing["closed_at"])) == (2, 7)


def test_an_exchange_that_skips_failures_closes_with_the_last_of_them(tmp_path: Path) -> None:
    """Client 1 fails in both exchanges; in the second one before all replies, so that the last reply closes it."""
    failures = [Rejected(at, "pi-1", 1, 1, "no luck", failed=True) for at in (6.0, 7.0)]
    history = History(tmp_path, [], [])
    events: list[Event] = [Joined(2.0, "pi-1", 1, (1,)), reply(5.0, 0), *failures, reply(8.0, 0, exchange=1)]
    for seq, event in enumerate(events, 1):
        history.take(seq, event)
    history.close_round(finished(1, 8.0, missing={"0": {1: "pi-1"}, "1": {1: "pi-1"}}), 10.0)
    spans = [(row["opened_at"], row["closed_at"]) for row in written(tmp_path)[0] if row["outcome"] == "accepted"]
    assert spans == [("2.0", "6.0"), ("6.0", "8.0")]


@pytest.mark.parametrize(
    "failure", [Rejected(6.0, "pi-9", 1, 1, "", failed=True), Rejected(6.0, "pi-1", 1, 0, "", failed=True)]
)
def test_a_failure_that_does_not_count_closes_no_exchange(failure: Rejected, tmp_path: Path) -> None:
    """One that an agent reports of another agent's client, and one of an earlier round."""
    history = History(tmp_path, [], [])
    events: list[Event] = [Joined(2.0, "pi-1", 1, (1,)), reply(5.0, 0), failure]
    for seq, event in enumerate(events, 1):
        history.take(seq, event)
    history.close_round(finished(1, 8.0, missing={"0": {1: "pi-1"}}), 10.0)
    assert [row["closed_at"] for row in written(tmp_path)[0] if row["outcome"] == "accepted"] == ["5.0"]


def test_the_events_name_joins_restarts_and_refusals(tmp_path: Path) -> None:
    history = play(tmp_path)
    kinds = [(event["kind"], event["board"], event["round"]) for event in written(tmp_path)[1]]
    assert kinds == [
        ("joined", "pi-0", 1), ("joined", "pi-1", 1), ("rejected", "pi-1", 1), ("left", "pi-0", 2), ("back", "pi-0", 2),
        ("restarted", "pi-0", 2), ("late", "pi-1", 2), ("recovered", None, 2),
    ]  # fmt: skip
    assert history.events[0].kind == "recovered"
    counts = history.boards["pi-0"], history.boards["pi-1"]
    assert [(c.accepted, c.late, c.rejected, c.restarts) for c in counts] == [(2, 0, 0, 1), (0, 1, 1, 0)]


@pytest.mark.parametrize("kept", range(len(EVENTS) + 1))
def test_a_restart_changes_neither_files_nor_counts(kept: int, tmp_path: Path) -> None:
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    for folder in (undisturbed, stopped):
        folder.mkdir()
    calm = play(undisturbed)
    before = History(stopped, [], [])
    for seq, event in list(enumerate(EVENTS, 1))[:kept]:
        if seq == ROUND_1[0] + 1:
            before.close_round(ROUND_1[2], ROUND_1[1])
        before.take(seq, event)
    with (stopped / "events.jsonl").open("a") as file:
        file.write('{"seq": 9, "at"')  # as a killed process leaves it
    again = play(stopped, kept=kept)
    assert written(stopped) == written(undisturbed)
    assert (again.boards, again.rows, again.memory) == (calm.boards, calm.rows, calm.memory)


def test_the_memory_of_a_client_is_that_of_its_trainings(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    measured = [{"memory_peak": 100.0, "gpu_memory_peak": 7.0}, {"memory_peak": 300.0}, {}]
    for round, peaks in enumerate(measured, 1):
        metrics = {"train_seconds": 1.0, **peaks}
        history.take(2 * round, replace(reply(2.0 * round, 4, round=round), metrics=metrics))
        evaluation = replace(reply(2.0 * round, 4, exchange=1, round=round), metrics={"memory_peak": 9e9})
        history.take(2 * round + 1, evaluation)
        history.close_round(finished(round, 2.0), 2.0 * round + 1)
    assert history.memory[4].row(4, "fp16") == TrainingMemory(
        client=4, precision="fp16", trainings=3,
        memory_peak=300, memory_peak_mean=200, gpu_memory_peak=7, gpu_memory_peak_mean=7,
    )  # fmt: skip
    first = next(csv.DictReader((tmp_path / "replies.csv").read_text().splitlines()))
    assert first["gpu_memory_peak"] == "7"


def test_an_event_with_a_number_is_written_once(tmp_path: Path) -> None:
    history = play(tmp_path)
    for _ in range(2):
        history.add("deadline", 7.0, "The deadline passed", seq=99, exchange=0)
        history.add("silent", 8.0, "sends nothing", board="pi-0")
    assert [event.kind for event in history.events[:3]] == ["silent", "silent", "deadline"]


KINDS: tuple[EventKind, ...] = "rejected", "skipped"


def test_several_events_may_have_the_number_of_one_in_the_journal(tmp_path: Path) -> None:
    """Each is written once, also by a coordinator that starts after it."""
    path = tmp_path / "events.jsonl"
    book = EventBook()
    for file in (EventFile(path, 1, fresh=False) for _ in range(2)):
        for kind in KINDS:
            file.add(book.make(kind, 7.0, "text", seq=9))
        file.add(book.make("silent", 8.0, "sends nothing"))
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == [
        "rejected", "skipped", "silent", "silent",
    ]  # fmt: skip


def test_the_last_number_is_found_before_any_number_of_events_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = play(tmp_path)
    for _ in range(20):
        history.add("silent", 8.0, "sends nothing", board="pi-0")
    path = tmp_path / "events.jsonl"
    numbers = [json.loads(line)["seq"] for line in path.read_text().splitlines()]
    monkeypatch.setattr("fedquilt_server.history.log_files._TAIL_BYTES", 100)
    assert EventFile(path, 3, fresh=False).last_seq == max(number for number in numbers if number is not None) > 0


def test_replies_before_a_restarted_round_do_not_count(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    events: list[Event] = [reply(1.0, 0), RoundRestarted(2.0, 1, "damaged", 0.0, {}, {}), reply(3.0, 0)]
    for seq, event in enumerate(events, 1):
        history.take(seq, event)
    assert [row.outcome for row in history.open_rows()] == ["discarded", "accepted"]
    history.close_round(finished(1, 4.0), 4.0)
    assert [row["outcome"] for row in written(tmp_path)[0]] == ["discarded", "accepted"]


def test_readings_are_written_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    for at in (1.5, 2.5):
        history.add_telemetry(BoardStatus(agent='p,"i', temperature=40 + at, joules=at), at)
    history.flush(force=True)
    rows = list(csv.DictReader((tmp_path / "telemetry.csv").read_text().splitlines()))
    assert [(row["time"], row["board"], row["temperature"], row["power"]) for row in rows] == [
        ("1.5", 'p,"i', "41.5", ""), ("2.5", 'p,"i', "42.5", ""),
    ]  # fmt: skip


def test_a_resumed_run_has_the_energy_of_each_board(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    for board, joules in (("a", 5.0), ("b", None), ("a", 7.5), ("a", 6.0), ("c,1", 2.0)):
        history.add_telemetry(BoardStatus(agent=board, joules=joules), 1.0)
    history.flush(force=True)
    with (tmp_path / "telemetry.csv").open("a") as file:
        file.write("2.0,c,,,,,,nan\n2.0,a,,,,,,many\n2.0,a\n2.0,a,,,,,,-1\n3.0,a,,,,,,99")
    (tmp_path / "boards.csv").write_text('agent,kind,joules\na,strong,7.25\n"c,1",,3.5\nd,,\ne,,4')
    assert History(tmp_path, [], [(1, EVENTS[0])]).board_joules == {"a": 7.5, "c,1": 3.5, "e": 4.0}
    assert History(tmp_path, [], []).board_joules == {}


def test_a_new_run_in_an_old_folder_begins_a_new_history(tmp_path: Path) -> None:
    play(tmp_path)
    history = History(tmp_path, [], [])
    history.add("started", 1.0, "Run b began")
    replies, events = written(tmp_path)
    assert (replies, [event["kind"] for event in events]) == ([], ["started"])


def test_replies_that_do_not_count_because_others_were_asked_are_discarded(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    history.take(1, EVENTS[0])
    for seq, event in enumerate([reply(1.0, 0), reply(2.0, 1), reply(3.0, 0, exchange=1)], 2):
        history.take(seq, event)
    history.close_round(finished(1, 8.0, discarded={"0": [0]}), 10.0)
    outcomes = [(row["client"], row["exchange"], row["outcome"]) for row in written(tmp_path)[0]]
    assert outcomes == [("0", "0", "discarded"), ("1", "0", "accepted"), ("0", "1", "accepted")]


def test_a_reply_to_an_earlier_task_belongs_to_the_round_in_which_it_counts(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    events: list[Event] = [EVENTS[0], reply(3.0, 0), reply(6.0, 1, round=1), Ticked(9.0)]
    for seq, event in enumerate(events, 1):
        history.take(seq, event)
        if seq == 2:
            history.close_round(finished(1, 2.0, staleness=0.0), 4.0)
    history.close_round(finished(2, 6.0, staleness=1.0), 10.0)
    late = written(tmp_path)[0][1]
    asked, counted = (late["round"], late["exchange"]), (late["counted_round"], late["counted_exchange"])
    assert (late["outcome"], asked, counted) == ("accepted", ("1", "0"), ("2", "0"))
    assert [float(late[name]) for name in ("opened_at", "arrived_at", "closed_at")] == [4, 6, 9]
    assert [row.place for row in history.rows] == [(1, 0), (2, 0)]


def test_a_client_without_a_sub_model_has_neither_costs_nor_samples(tmp_path: Path) -> None:
    """A client on whose board nothing fits reports only that, with the least weight that a reply may have."""
    nothing_fits = replace(reply(2.0, 1), weight=1.0, metrics={"fits": -1.0})
    history = History(tmp_path, [], [])
    for seq, event in enumerate([EVENTS[0], reply(1.0, 0), nothing_fits, reply(3.0, 2)], 1):
        history.take(seq, event)
    cost = {"params": 10, "flops": 20, "entries": 10}
    history.close_round(finished(1, 8.0, trained={"0": "M1"}, sub_models={"M1": cost, "None": cost}), 10.0)
    rows = [(row["level"], row["params"], row["samples"]) for row in written(tmp_path)[0]]
    assert rows == [("M1", "10", "30.0"), ("", "", ""), ("", "", "30.0")]


def test_a_board_that_no_sub_model_fits_is_reported_once_and_is_too_small_until_it_trains(tmp_path: Path) -> None:
    history = History(tmp_path, [], [])
    nothing, smaller = (replace(reply(1.0, 0), metrics={"fits": float(fits)}) for fits in (-1, 2))
    tested = replace(reply(1.0, 0), metrics={"accuracy": 0.5})
    seen = []
    again = Joined(3.0, "pi-0", 4, (0,))
    events: list[Event] = [
        Joined(0.5, "pi-0", 3, (0,)),
        nothing,
        tested,
        reply(2.0, 0),
        nothing,
        smaller,
        nothing,
        again,
    ]
    for seq, event in enumerate(events, 1):
        history.take(seq, event)
        seen.append(history.counts_of("pi-0").is_too_small)
    assert seen == [False, True, True, False, True, False, True, False]
    assert [event["kind"] for event in written(tmp_path)[1]] == ["joined", "too small", "restarted"]


def test_a_client_without_test_samples_has_no_accuracy(tmp_path: Path) -> None:
    """Its reply holds an accuracy of 0 as a weight."""
    untested = replace(reply(2.0, 1), metrics={"accuracy": 0.0, "untested": 1.0})
    history = History(tmp_path, [], [])
    for seq, event in enumerate([EVENTS[0], replace(reply(1.0, 0), metrics={"accuracy": 0.0}), untested], 1):
        history.take(seq, event)
    history.close_round(finished(1, 8.0), 10.0)
    assert [row["accuracy"] for row in written(tmp_path)[0]] == ["0.0", ""]


def documented(language: str, folder: Path) -> str:
    """Return the example of the documentation in this language, for the tables in ``folder``."""
    section = (Path(__file__).parents[4] / "docs" / "machine.md").read_text().split("\n## Tables")[1].split("\n## ")[0]
    (code,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(code).replace("runs/demo", str(folder))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The tables of a run of two rounds."""
    history = play(tmp_path)
    history.close_round(finished(2, 4.0), 20.0)
    (tmp_path / "rounds.csv").write_text(rounds_csv([
        finished(1, 8.0, accuracy=0.5, bytes_down=100, bytes_up=200), finished(2, 4.0, accuracy=0.75, bytes_up=50),
    ]))  # fmt: skip
    return tmp_path


def test_the_example_with_pandas(tables: Path) -> None:
    words = [sys.executable, "-c", documented("python", tables)]
    shown = [line.split() for line in subprocess.check_output(words, text=True).splitlines()]
    assert ["pi-0", "2.0", "1.5", "0.0", "1.5", "1.5", "1.5", "1.5", "1.5"] in shown
    assert shown[-3:] == [["round", "bytes", "accuracy"], ["0", "1", "300", "0.50"], ["1", "2", "350", "0.75"]]


def test_the_examples_with_duckdb(tables: Path) -> None:
    problems, energy = (duckdb.execute(query).fetchall() for query in documented("sql", tables).strip().split(";\n\n"))
    assert problems == [("pi-0", "left", 1), ("pi-0", "restarted", 1), ("pi-1", "late", 1), ("pi-1", "rejected", 1)]
    assert energy == [(1, 0.5, 25.0)]
