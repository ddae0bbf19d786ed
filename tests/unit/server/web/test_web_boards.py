"""The boards on the page: their order, cells and problems, and what a waiting run lacks. All functions are pure."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_server.status.problems import list_problems, natural_key, sort_worst_first
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.status.units import DASH
from fedquilt_server.web.cells import UNKNOWN, format_cells
from fedquilt_server.web.missing import list_missing

GIB = 2**30


def board(agent: str, **known: Any) -> BoardStatus:
    return BoardStatus.model_validate({"agent": agent, **known})


# Order


def test_boards_are_in_natural_order_with_the_worst_first() -> None:
    names = ["weak-10", "weak-2", "Weak-1", "b", "weak-002", "weak"]
    assert [one.agent for one in sort_worst_first([board(name) for name in names])] == [
        "b", "weak", "Weak-1", "weak-2", "weak-002", "weak-10",
    ]  # fmt: skip
    states = ["online", "late", "silent", "restarted", "never seen", "hot", "dropped", "offline", "throttled"]
    states += ["too small", "out of memory"]
    ordered = sort_worst_first([board(state, health=state) for state in states])
    assert [one.agent for one in ordered] == [
        "offline", "silent", "out of memory", "too small", "never seen", "throttled", "hot", "late", "dropped",
        "restarted", "online",
    ]  # fmt: skip


@given(st.lists(st.text(max_size=8)))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    sorted(names, key=natural_key)
    natural_key("9" * 5000)


# Cells


def test_a_board_that_reports_nothing_has_dashes() -> None:
    cells = format_cells(board("quiet"))
    unknown = ("clients", "cores", "memory", "memory_own", "temperature", "power", "energy", "load", "training")
    assert {cells[name] for name in unknown} == {DASH}
    assert cells["memory_share"] == cells["progress"] == UNKNOWN
    assert format_cells(board("open", memory_total=GIB))["memory"] == f"{DASH} of 1.0 GiB"


def test_the_cells_of_a_board() -> None:
    known = {"memory_total": 8 * GIB, "memory_used": 2 * GIB, "memory_own": GIB // 2, "temperature": 61.52}
    energy = {"power": 5.04, "power_source": "estimate", "joules": 1234.0, "load": 1.234, "last_seen": 99.6}
    cells = format_cells(board("a", clients=[1, 2, 3, 7], training={2: 0.5, 1: 1.0}, **known, **energy))
    assert cells["clients"] == f"1{DASH}3, 7"
    assert (cells["memory"], cells["memory_share"], cells["memory_own"]) == ("2.0 GiB of 8.0 GiB", 0.25, "512 MiB")
    texts = [str(cells[name]).replace("\N{NO-BREAK SPACE}", " ") for name in ("temperature", "power", "energy", "load")]
    assert texts == ["61.5 °C", "\N{ALMOST EQUAL TO} 5.0 W", "1.2 kJ", "1.23"]
    assert str(cells["training"]).replace("\N{NO-BREAK SPACE}", " ") == "1: 100 %, 2: 50 %"
    assert (cells["progress"], cells["seen"]) == (0.75, 100)


def test_long_texts_are_cut() -> None:
    cells = format_cells(board("a", kind="k" * 500, reason="r" * 5000, training=dict.fromkeys(range(30), 0.5)))
    assert (len(str(cells["kind"])), len(str(cells["reason"]))) == (40, 200)
    assert str(cells["training"]).endswith("and 14 more")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e300, 1e300])
def test_no_number_of_a_board_breaks_its_cells(value: float) -> None:
    hostile = board("a", temperature=value, power=value, joules=value, load=value, training={1: value}, since=value)
    cells = format_cells(hostile.model_copy(update={"last_seen": value, "memory_used": -5, "memory_total": 1}))
    assert 0 <= float(cells["memory_share"]) <= 1
    assert not any(isinstance(cell, float) and not math.isfinite(cell) for cell in cells.values())
    assert not any(isinstance(cell, str) and ("nan" in cell or "inf" in cell) for cell in cells.values())


# Problems


def run(**known: Any) -> Snapshot:
    return Snapshot.model_validate({"phase": "training", "broker_connected": True, **known})


def test_a_run_without_problems_has_no_warning_line() -> None:
    assert list_problems(run(boards=[board("a"), board("b", health="restarted"), board("c", health="dropped")])) == []


def test_the_worst_problem_is_named_first() -> None:
    boards = [board("warm", health="hot"), board("gone", health="offline", reason="offline for 6 min.")]
    calm = run(boards=boards)
    assert [one.text for one in list_problems(calm)] == ["gone is offline for 6 min", "warm is hot"]
    lost = calm.model_copy(update={"broker_connected": False, "name": "x"})
    diverged = lost.model_copy(update={"warning": "The loss is nan since round 3."})
    failed = diverged.model_copy(update={"phase": "failed", "message": "no quorum"})
    assert [(list_problems(one)[0].text, len(list_problems(one))) for one in (lost, diverged, failed)] == [
        ("The coordinator has no connection to the broker", 3),
        ("The loss is nan since round 3", 4),
        ("no quorum", 2),
    ]


def test_failing_clients_are_a_problem() -> None:
    (one,) = list_problems(run(failing=3, tasks=8, failures={7: "no such data set"}))
    assert one.text == "3 of 8 clients fail: client 7: no such data set"


@pytest.mark.parametrize("phase", ["finished", "failed", "stopped"])
def test_after_the_end_a_board_that_leaves_is_no_problem(phase: str) -> None:
    boards = [board("a", health="offline"), board("b", health="silent")]
    assert [one for one in list_problems(run(phase=phase, boards=boards)) if one.board] == []


def test_boards_that_the_page_lists_as_missing_are_no_problem() -> None:
    boards = [board("a", health="never seen", online=False)]
    assert list_problems(run(phase="waiting", boards=boards)) == []
    assert [one.text for one in list_problems(run(boards=boards))] == ["a has never connected"]


# What a waiting run lacks


def test_each_missing_board_has_its_command() -> None:
    boards = [
        board("pi-10", health="never seen", online=False, clients=[4, 5, 7]),
        board("pi-2", health="offline", online=False, clients=[1]),
        board("idle", health="offline", online=False, clients=[99]),
        board("here", clients=[0]),
    ]
    lacking = list_missing(
        run(phase="waiting", boards=boards, awaited=[1, 4, 5, 7, 8, 9], connect="--broker mqtt://host:1883")
    )
    assert [(one.agent, one.clients, one.several) for one in lacking] == [
        ("pi-2", "1", False), ("pi-10", "4-5,7", True), ("", "8-9", True),
    ]  # fmt: skip
    assert lacking[1].command == "fedquilt agent --broker mqtt://host:1883 --id pi-10 --clients 4-5,7"
    assert lacking[2].command == "fedquilt agent --broker mqtt://host:1883 --id NAME --clients 8-9"


def test_a_board_that_somebody_dropped_has_no_command_because_the_coordinator_would_refuse_it() -> None:
    boards = [board("pi-2", health="dropped", online=False, clients=[1]), board("a", health="never seen", online=False)]
    lacking = list_missing(run(phase="waiting", boards=boards, awaited=[1]))
    assert [(one.agent, one.state, bool(one.command)) for one in lacking] == [
        ("a", "never seen", True), ("pi-2", "dropped", False),
    ]  # fmt: skip


def test_a_name_with_signs_of_the_shell_is_quoted() -> None:
    (one,) = list_missing(run(phase="waiting", boards=[board("a; rm -rf /", health="never seen", online=False)]))
    assert "--id 'a; rm -rf /' " in one.command


def test_a_run_that_goes_on_lacks_nothing() -> None:
    assert list_missing(run(boards=[board("a", health="never seen", online=False)])) == []
