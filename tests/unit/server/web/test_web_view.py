"""The page's filters and derived values, which are pure functions, and the events that a reader receives."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_server.status import scores, units, waiting
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.web import text, view
from fedquilt_server.web.fragments import PARTS, Renderer
from fedquilt_server.web.stream import HEARTBEAT_SECONDS, Reader

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
        (units.duration(59.99), "60.0 s"),
        (units.duration(200), "3 min 20 s"),
        (units.duration(3900), "1 h 05 min"),
        (units.traffic(0), "0 B"),
        (units.traffic(999), "999 B"),
        (units.traffic(415_300), "415 kB"),
        (units.traffic(3.3e6), "3.3 MB"),
        (units.traffic(7e17), "700000 TB"),
        (units.memory(512 * 2**20), "512 MiB"),
        (units.memory(8 * 2**30), "8.0 GiB"),
        (waiting.ranges([7, 0, 1, 2, 3]), f"0{waiting.DASH}3, 7"),
        (text.clock(3661), "01:01:01 UTC"),
        (text.tally({"1.0": 4, "0.5": 2}), f"4{TIMES}1.0, 2{TIMES}0.5"),
        (text.tally({}), waiting.DASH),
    ],
)
def test_written(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_no_number_is_a_dash(value: float | None) -> None:
    formats = (units.number, units.percent, units.traffic, units.memory, units.duration)
    assert {write(value) for write in formats} == {waiting.DASH}


def test_not_told_yet_is_a_dash() -> None:
    assert units.memory(0) == text.count(0) == text.clock(0) == waiting.ranges([]) == waiting.DASH


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_exactly_the_numbers(numbers: set[int]) -> None:
    parts = [part.split(waiting.DASH) for part in waiting.ranges(numbers).split(", ")] if numbers else []
    assert {n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)} == numbers


def test_who_trained_what_is_counted_from_the_widest() -> None:
    widths = row(1, trained={"0": 0.5, "1": 1.0, "2": 0.0625, "3": 0.5})
    assert list(widths.sizes.items()) == [("1.0", 1), ("0.5", 2), ("0.0625", 1)]
    members = row(1, trained={"0": "S2", "1": "L1", "2": "S2"}, scores={"average_accuracy": 0.25})
    assert list(members.sizes.items()) == [("L1", 1), ("S2", 2)]
    assert (members.average, widths.average, row(1).sizes) == (0.25, None, {})


def test_the_rounds_show_sub_models_where_there_are_any() -> None:
    plain = Renderer().parts(snapshot(row(1)))["rounds"]
    assert "Waste" not in plain
    parted = row(1, trained={"0": "L1", "1": "<b>"}, waste_rate=0.25, scores={"average_accuracy": 0.5})
    shown = Renderer().parts(snapshot(parted))["rounds"]
    assert all(words in shown for words in ("Waste", "25.0 %", "50.0 %", f"1{TIMES}&lt;b&gt;"))


def test_the_rounds_show_bytes_of_labels_where_there_are_any() -> None:
    assert "Labels" not in Renderer().parts(snapshot(row(1)))["rounds"]
    shown = Renderer().parts(snapshot(row(1, label_bytes_down=6480, label_bytes_up=648)))["rounds"]
    assert all(words in shown for words in ("Labels down", "6.5 kB", "Labels up", "648 B"))


def test_a_board_that_says_nothing_of_itself_has_dashes() -> None:
    shown = Renderer().parts(
        snapshot(boards=[{"agent": "quiet"}, {"agent": "open", "cores": 4, "memory_total": 2**30}])
    )
    quiet, open_ = sorted(shown["boards"].split("<tr")[-2:], key=lambda line: "open" in line)
    assert f'data-label="Cores" class="n">{waiting.DASH}<' in quiet
    assert f"<span>{waiting.DASH}</span>" in quiet
    assert "GiB" not in quiet
    assert f"<span>{waiting.DASH} of 1.0 GiB</span>" in open_


def test_summary_of_nothing() -> None:
    empty = view.summarise(snapshot())
    assert (empty.latest, empty.best, empty.loss, empty.seconds, empty.seconds_left) == (None,) * 5


def test_summary() -> None:
    rows = [
        row(1, accuracy=0.5, loss=1.0, seconds=4, train_seconds=3, bytes_down=10),
        row(2, accuracy=0.7, loss=math.nan, seconds=6, train_seconds=3, bytes_down=30),
        row(3, seconds=100, train_seconds=5, bytes_down=20),
    ]
    got = view.summarise(snapshot(*rows))
    assert got.latest == got.best == (2, 0.7)
    assert got.loss == (1, 1.0)
    assert (got.seconds, got.bytes_down, got.total_down) == (6, 20, 60)
    assert got.train_share == pytest.approx(0.1)
    assert got.seconds_left == 42


@pytest.mark.parametrize("phase", ["finished", "failed"])
def test_nothing_is_left_of_a_run_that_is_over(phase: str) -> None:
    assert view.summarise(snapshot(row(1, seconds=2), phase=phase)).seconds_left is None


def test_regression_is_judged_by_r2() -> None:
    assert scores.choose_measure([row(1), row(2, r2=0.3)]) == "r2"
    assert scores.choose_measure([row(1, accuracy=0.1, r2=0.3)]) == "accuracy"
    assert scores.choose_measure([]) == "accuracy"


def test_page_of_a_regression_run() -> None:
    parts = Renderer().parts(snapshot(row(1, r2=0.25)))
    assert "R²" in parts["summary"]
    assert "0.250" in parts["rounds"]


def test_long_lists_are_cut_and_say_so() -> None:
    boards = [{"agent": f"a{n}", "training": dict.fromkeys(range(30), 0.5)} for n in range(150)]
    parts = Renderer().parts(snapshot(*map(row, range(1, 41)), boards=boards))
    assert parts["boards"].count("<tr class") == 100
    assert "Showing the first 100 of 150 boards" in parts["boards"]
    assert "and 14 more" in parts["boards"]
    assert "Showing the last 20 of 40 rounds" in parts["rounds"]
    assert parts["rounds"].index(">40<") < parts["rounds"].index(">21<")


# --- the events that a reader receives ----------------------------------------------------------------------


def sent_events(reader: Reader, now: Snapshot, at: float = 0.0) -> dict[str, str]:
    return dict(map(parse_event, reader.events(now, at)))


def parse_event(event: bytes) -> tuple[str, str]:
    """Return an event's name and data."""
    fields = [line.partition(": ") for line in event.decode().split("\r\n")]
    (name,) = (value for field, _, value in fields if field == "event")
    return name, "\n".join(value for field, _, value in fields if field == "data")


def test_a_new_reader_is_sent_everything() -> None:
    assert set(sent_events(Reader(Renderer()), snapshot(), at=1.0)) == {"clock", "history", *PARTS}


def test_nothing_new_sends_only_the_heartbeat() -> None:
    reader, same = Reader(Renderer()), snapshot()
    sent_events(reader, same)
    assert sent_events(reader, same, HEARTBEAT_SECONDS / 2) == {}
    assert set(sent_events(reader, same, HEARTBEAT_SECONDS)) == {"clock"}


def test_curves_are_continued_or_begun_again() -> None:
    reader, rows = Reader(Renderer()), [row(1, accuracy=0.1), row(2, loss=math.nan)]
    points = [
        json.loads(sent_events(reader, snapshot(*history))["history"])
        for history in (rows[:1], rows, [row(1, accuracy=0.9)])
    ]
    sent = [(p["start"], p["round"], p["value"]) for p in points]
    assert sent == [(0, [1], [0.1]), (1, [2], [None]), (0, [1], [0.9])]
    assert points[1]["loss"] == [None]
