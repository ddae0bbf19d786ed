"""Lines about a run: bounded names of clients, times, and the worst problem."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_server.status.problems import SEVERITY, natural_key, worst_problem
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_lines import HistoryDigest, Lines, digest_history, run_lines, show_loss
from fedquilt_server.status.snapshot import BoardStatus, HealthState, Snapshot
from fedquilt_server.status.units import DASH
from fedquilt_server.status.waiting import ranges

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}


def show(run: Snapshot, now: float, elapsed: float | None, width: int) -> Lines:
    return run_lines(run, digest_history(run.history), now, elapsed, width)


@pytest.mark.parametrize(
    ("numbers", "width", "words"),
    [
        ([3, 4, 5, 9, 11, 13, 15, 17], 20, f"3{DASH}5, 9 and 4 more"),
        ([3, 4, 5, 9], 6, f"3{DASH}5, 9"),
        ([3, 4, 5, 9], 5, f"3{DASH}5 and 1 more"),
        ([7], 0, "7"),
        ([], 10, DASH),
        (range(0, 200_000, 2), 30, "0, 2, 4, 6, 8 and 99995 more"),
    ],
)
def test_clients_that_do_not_fit_are_counted(numbers: list[int], width: int, words: str) -> None:
    assert ranges(numbers, width) == words


@given(st.sets(st.integers(0, 300)), st.integers(25, 80))
def test_all_clients_are_named_or_counted(numbers: set[int], width: int) -> None:
    text = ranges(numbers, width)
    assert len(text) <= width
    names, _, more = text.partition(" and ")
    ends = [part.split(DASH) for part in names.split(", ")] if numbers else []
    named = {number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)}
    assert named <= numbers
    assert len(named) + int(more.split()[0] if more else 0) == len(numbers)


@given(st.builds(Snapshot, name=st.text(), message=st.text(), rounds=st.integers(0), tasks=st.integers(0)),
       st.integers(1, 100))  # fmt: skip
def test_no_line_is_too_long(snapshot: Snapshot, width: int) -> None:
    lines = show(snapshot, 0.0, 1e9, width)
    assert max(line.cell_len for line in lines.values()) <= width
    assert all(line.plain.isprintable() for line in lines.values())


def test_the_estimate_counts_down_within_a_round() -> None:
    rows = [RoundResult.model_validate({**ZEROS, "round": 1, "seconds": 60.0})]
    run = Snapshot(name="n", phase="training", round=2, rounds=3, history=rows, opened_at=1000.0)
    shown = [show(run, now, None, 80)["time"].plain.split(",")[0] for now in (1000.0, 1045.0, 1e9)]
    assert shown == ["about 2 min 00 s left", "about 1 min 15 s left", "about 1 min 00 s left"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"broker_connected": False}, "The coordinator has no connection to the broker"),
        ({"warning": "the loss explodes"}, "the loss explodes"),
        ({"failing": 2, "tasks": 8, "failures": {3: "the client failed: no memory"}},
         "2 of 8 clients fail: client 3: no memory"),
        ({"boards": [BoardStatus(agent="b", health="late"), BoardStatus(agent="a", health="hot", reason="91 °C"),
                     BoardStatus(agent="c", online=False)]}, "c is offline, and 2 more"),
        ({"boards": [BoardStatus(agent=name, site="hall", health="unreachable", online=False) for name in "abc"]},
         "Site hall is cut off (3 boards behind it)"),
        ({"phase": "failed", "message": "no quorum"}, "no quorum"),
        ({"phase": "finished", "message": "all rounds are done", "warning": "at chance"}, "at chance"),
    ],
)  # fmt: skip
def test_the_worst_problem(changes: dict[str, object], words: str) -> None:
    run = Snapshot(name="n", phase="training", broker_connected=True)
    assert worst_problem(run.model_copy(update=changes)) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Waiting for client 3 to reply"),
        ({"paused": True}, "Paused: no further round opens until somebody continues the run"),
        ({"stopping": True}, "Somebody has stopped the run: it ends after this round"),
    ],
)
def test_what_a_person_has_asked_of_the_run(changes: dict[str, object], words: str) -> None:
    run = Snapshot(name="n", phase="training", broker_connected=True, awaited=[3]).model_copy(update=changes)
    assert show(run, 0.0, None, 80)["waiting"].plain == words


def test_every_state_of_a_board_has_its_place() -> None:
    assert sorted(SEVERITY) == sorted(get_args(HealthState))


def test_boards_are_in_natural_order() -> None:
    assert sorted(["weak-10", "weak-2", "a", "7", "weak"], key=natural_key) == ["7", "a", "weak", "weak-2", "weak-10"]


def test_the_clock_stops_at_the_end() -> None:
    rows = [RoundResult.model_validate({**ZEROS, "round": 1, "seconds": 60.0})]
    run = Snapshot(name="n", phase="finished", round=1, rounds=1, history=rows)
    assert show(run, 0.0, 90.0, 80)["time"].plain == "median round 1 min 00 s, 0 B down, 0 B up"


def test_a_long_history_is_digested_once_per_round() -> None:
    rows = [RoundResult.model_validate({**ZEROS, "round": n, "accuracy": n / 10}) for n in (1, 2)]
    first = HistoryDigest().follow(rows[:1])
    assert (first.scores, first.follow(list(rows[:1])) is first) == (["accuracy 0.1000"], True)
    assert first.follow(rows).scores == ["accuracy 0.2000"]
    assert first.follow([]).scores == ()


def test_losses_of_any_size() -> None:
    assert [show_loss(value) for value in (0.5, 12345.678, 1.8e9, 0.0, 1e-7)] == [
        "0.5000", "12345.6780", "1.800e+09", "0.0000", "1.000e-07",
    ]  # fmt: skip
