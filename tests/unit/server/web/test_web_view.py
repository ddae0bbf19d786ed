"""The page's filters and the values that it derives from a snapshot, which are pure functions."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.learning_tasks.metrics import ACCURACY, MAP50, R2
from fedquilt_server.status import scores, units, waiting
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.web import text, view
from fedquilt_server.web.fragments import Renderer

TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}"


def row(number: int, **known: Any) -> RoundResult:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    return RoundResult.model_validate({**zeros, "round": number, **known})


def snapshot(*rows: RoundResult, **known: Any) -> Snapshot:
    return Snapshot.model_validate({"history": list(rows), "rounds": 10, **known})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (units.percent(0.9345), "93.5 %"),
        (units.number(1.23456), "1.235"),
        (units.duration(0.823), "0.82 s"),
        (units.duration(12.34), "12.3 s"),
        (units.duration(59.94), "59.9 s"),
        (units.duration(200), "3 min 20 s"),
        (units.duration(3900), "1 h 05 min"),
        (units.traffic(0), "0 B"),
        (units.traffic(999), "999 B"),
        (units.traffic(415_300), "415 kB"),
        (units.traffic(3.3e6), "3.3 MB"),
        (units.traffic(7e17), "700000 TB"),
        (units.memory(512 * 2**20), "512 MiB"),
        (units.memory(8 * 2**30), "8.0 GiB"),
        (waiting.ranges([7, 0, 1, 2, 3]), f"0{units.DASH}3, 7"),
        (text.clock(3661), "01:01:01 UTC"),
        (text.tally({"1.0": 4, "0.5": 2}), f"4{TIMES}1.0, 2{TIMES}0.5"),
        (text.tally({}), units.DASH),
    ],
)
def test_written(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_no_number_is_a_dash(value: float | None) -> None:
    formats = (units.number, units.percent, units.traffic, units.memory, units.duration)
    assert {write(value) for write in formats} == {units.DASH}


def test_not_told_yet_is_a_dash() -> None:
    assert units.memory(0) == text.count(0) == text.clock(0) == waiting.ranges([]) == units.DASH


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_exactly_the_numbers(numbers: set[int]) -> None:
    parts = [part.split(units.DASH) for part in waiting.ranges(numbers).split(", ")] if numbers else []
    assert {n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)} == numbers


def test_who_trained_what_is_counted_from_the_widest() -> None:
    widths = row(1, trained={"0": 0.5, "1": 1.0, "2": 0.0625, "3": 0.5})
    assert list(widths.sizes.items()) == [("1.0", 1), ("0.5", 2), ("0.0625", 1)]
    members = row(1, trained={"0": "S2", "1": "L1", "2": "S2"}, scores={"average_accuracy": 0.25})
    assert list(members.sizes.items()) == [("L1", 1), ("S2", 2)]
    assert (members.average, widths.average, row(1).sizes) == (0.25, None, {})


def rounds_of(*rows: RoundResult) -> str:
    results = view.summarise_results(rows)
    return Renderer().rounds(rows, view.round_columns(rows, results.metric))


def test_the_rounds_show_sub_models_where_there_are_any() -> None:
    assert "Waste" not in rounds_of(row(1))
    shown = rounds_of(row(1, trained={"0": "L1", "1": "<b>"}, waste_rate=0.25, scores={"average_accuracy": 0.5}))
    assert all(words in shown for words in ("Waste", "25.0 %", "50.0 %", f"1{TIMES}&lt;b&gt;"))


def test_the_rounds_show_bytes_of_labels_where_there_are_any() -> None:
    assert "Labels" not in rounds_of(row(1))
    shown = rounds_of(row(1, label_bytes_down=6480, label_bytes_up=648))
    assert all(words in shown for words in ("Labels to clients", "6.5 kB", "Labels from clients", "648 B"))


def test_the_rounds_show_personal_scores_while_the_latest_round_is_not_evaluated() -> None:
    tested = row(1, accuracy=0.5, global_accuracy=0.5, personal_accuracy=0.875)
    assert all(words in rounds_of(tested, row(2)) for words in ("Personal", "87.5"))
    assert "Personal" not in rounds_of(row(1, accuracy=0.5), row(2))


def summary_of(*rows: RoundResult, **known: Any) -> view.Summary:
    return view.summarise(snapshot(*rows, **known), view.summarise_results(rows))


def test_summary_of_nothing() -> None:
    empty = summary_of()
    results = empty.results
    assert (results.latest, results.best, results.loss, results.times.median, empty.seconds_left) == (None,) * 5
    assert (empty.has_energy, results.joules, empty.connected, empty.states) == (False, None, 0, {})


def test_summary() -> None:
    rows = [
        row(1, accuracy=0.5, loss=1.0, seconds=4, train_seconds=3, bytes_down=10),
        row(2, accuracy=0.7, loss=math.nan, seconds=6, train_seconds=3, bytes_down=30),
        row(3, seconds=100, train_seconds=5, bytes_down=20),
    ]
    summary = summary_of(*rows, phase="training")
    got = summary.results
    assert got.latest == got.best == (2, 0.7)
    assert got.loss == (1, 1.0)
    assert (got.times.median, got.bytes_down, got.total_down) == (6, 20, 60)
    assert got.times.training_share == pytest.approx(0.1)
    assert summary.seconds_left == 42


def test_the_bytes_of_a_round_are_the_median_of_both_ways() -> None:
    rows = [row(n, bytes_down=down, bytes_up=up) for n, (down, up) in enumerate([(1, 90), (50, 2), (60, 3)], 1)]
    tile = Renderer().parts(snapshot(*rows), summary_of(*rows))["summary"].partition("<h2>Bytes per round</h2>")[2]
    words = " ".join(re.sub(r"<[^>]*>", " ", tile.partition("</div>")[0]).split())
    assert words == "63 B median; &darr; down 50 B &uarr; up 3 B"


def test_of_a_run_that_stops_one_round_is_left_at_most() -> None:
    rows = [row(1, seconds=4), row(2, seconds=6), row(3, seconds=100)]
    assert summary_of(*rows, phase="training", stopping=True).seconds_left == 6


@pytest.mark.parametrize("phase", ["finished", "failed", "waiting"])
def test_no_time_is_left_of_a_run_that_is_over_or_waits(phase: str) -> None:
    assert summary_of(row(1, seconds=2), phase=phase).seconds_left is None


def test_regression_is_judged_by_r2() -> None:
    assert scores.choose_metric([row(1), row(2, r2=0.3)]) is R2
    assert scores.choose_metric([row(1, accuracy=0.1, r2=0.3)]) is ACCURACY
    assert scores.choose_metric([row(1, scores={"map50": 0.2, "map50_95": 0.1})]) is MAP50
    assert scores.choose_metric([]) is ACCURACY


def test_page_of_a_regression_run() -> None:
    one = row(1, r2=0.25)
    assert "R²" in Renderer().parts(snapshot(one), summary_of(one))["summary"]
    assert "0.250" in rounds_of(one)


def test_the_tiles_show_the_metrics_beside_the_main_one() -> None:
    rows = [row(1, r2=0.25, scores={"mae": 3.0}), row(2, r2=0.5, scores={"mae": 4.0})]
    shown = Renderer().parts(snapshot(*rows), summary_of(*rows))["summary"]
    assert '<p class="value" data-testid="mae">4.000</p>' in shown
    assert "best 3.000 in 1" in shown  # less is better
    found = row(1, scores={"map50": 0.5, "map50_95": 0.25, "global_map50": 0.5, "personal_map50": 0.75})
    shown = Renderer().parts(snapshot(found), summary_of(found))["summary"]
    assert all(words in shown for words in ("Global mAP-50", "50.0 %", "mAP-50:95", "25.0 %", "Personal mAP-50"))
    assert all(words in rounds_of(found) for words in ("50.0 %", "75.0 %", "mAP-50 of the clients"))


def test_the_tiles_count_the_boards_by_their_state() -> None:
    states = ("online", "hot", "online", "silent", "hot")
    known: list[dict[str, Any]] = [
        {"agent": f"a{i}", "health": state, "clients": [i, 0]} for i, state in enumerate(states)
    ]
    known[3] |= {"online": False}
    summary = summary_of(boards=known)
    assert (summary.connected, summary.boards, summary.clients) == (4, 5, 5)
    assert list(summary.states.items()) == [("silent", 1), ("hot", 2)]


MEASURED = {"joules": 5.0, "joules_estimated": False, "joules_measured": True}
ESTIMATED = {"joules": 7.0, "joules_estimated": True, "joules_measured": False}


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([], (units.DASH, "")),
        ([MEASURED, MEASURED], ("10 J", "")),
        ([ESTIMATED, ESTIMATED], ("14 J", "estimated")),
        ([MEASURED, ESTIMATED], ("12 J", "partly estimated")),
        ([{**ESTIMATED, "joules_measured": True}], ("7 J", "partly estimated")),
        ([ESTIMATED, {"joules": None}], (units.DASH, "estimated")),
        ([{**MEASURED, "joules_boards": 1, "joules_boards_missing": 2}], ("5 J", "1 of 3 boards")),
    ],
)
def test_the_energy_is_the_sum_of_the_rounds(rounds: list[dict[str, Any]], words: tuple[str, str]) -> None:
    """Not that of the boards, which is of another moment."""
    rows = [row(number, **fields) for number, fields in enumerate(rounds, 1)]
    given = snapshot(*rows, boards=[{"agent": "pi", "joules": 1234.0}])
    tile = Renderer().parts(given, view.summarise(given, view.summarise_results(rows)))["summary"]
    found = re.search(r'data-testid="energy">([^<]*)</p>\s*<p class="quiet">([^<]*)</p>', tile)
    assert found is not None
    assert found.groups() == words


def test_the_table_of_replies_has_those_of_the_latest_closed_exchange() -> None:
    times = {"opened_at": 100.0, "began_at": 104.0, "arrived_at": 105.0, "closed_at": 107.5, "train_seconds": 3.5}
    done = {"exchange": 0, "outcome": "accepted", **times}
    rows = [
        ReplyRow.model_validate({**done, "round": n, "client": c, "agent": f"pi-{c}"}) for n in (1, 2) for c in (10, 2)
    ]
    late = {**done, "round": 1, "client": 3, "agent": "pi-3", "counted_round": 2, "counted_exchange": 0}
    rows.append(ReplyRow.model_validate(late))  # its task went on
    lost = {"round": 2, "exchange": 0, "client": 1, "agent": "pi-1", "outcome": "missing"}
    rows.append(ReplyRow.model_validate({**lost, "opened_at": 100.0, "closed_at": 107.5}))
    rows.append(rows[0].model_copy(update={"round": 3, "closed_at": None}))
    shown = view.latest_replies(rows)
    assert [one["agent"] for one in shown] == ["pi-1", "pi-2", "pi-3", "pi-10"]
    assert [shown[1][name] for name in ("receive", "train", "send", "wait")] == ["0.50 s", "3.50 s", "1.00 s", "2.50 s"]
    assert [shown[0][name] for name in ("receive", "train", "send", "wait")] == [units.DASH] * 4
    assert view.latest_replies([]) == []


@pytest.mark.parametrize(
    ("joules", "words"), [(0.0, "0 J"), (312.4, "312 J"), (4100.0, "4.1 kJ"), (7.5e6, "7.5 MJ"), (None, units.DASH)]
)
def test_energy(joules: float | None, words: str) -> None:
    assert units.energy(joules) == words


@pytest.mark.parametrize("at", [0.0, math.nan, math.inf, -1e300, 1e18])
def test_a_time_without_a_calendar_is_a_dash(at: float) -> None:
    assert text.clock(at) == units.DASH


@pytest.mark.parametrize(
    ("phase", "words"),
    [("training", "Boards connected"), ("stopped", "Connected at the end"), ("interrupted", "Connected at the end")],
)
def test_the_boards_of_a_run_that_has_ended_were_connected(phase: Any, words: str) -> None:
    assert f"<h2>{words}</h2>" in Renderer().parts(snapshot(phase=phase), summary_of(phase=phase))["summary"]
