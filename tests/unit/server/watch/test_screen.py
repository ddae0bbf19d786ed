"""The screen of ``fedquilt watch``: it fits, and shows what matters first."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.watch.curves import draw_curve
from fedquilt_server.watch.screen import screen_lines
from fedquilt_server.watch.state import WatchState

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def row(number: int) -> RoundResult:
    return RoundResult.model_validate({**ZEROS, "round": number, "accuracy": number / 100, "loss": 2.0, "seconds": 1.0})


def busy_run() -> Snapshot:
    """Forty boards, of which some have problems, and many events."""
    boards = [BoardStatus(agent=f"weak-{n}", clients=[n], memory_used=n << 20, last_seen=990.0) for n in range(36)]
    boards += [
        BoardStatus(agent="pi-10", online=False), BoardStatus(agent="pi-2", online=False),
        BoardStatus(agent="pi-1", health="silent", reason="for 9 s"), BoardStatus(agent="pi-0", health="late"),
    ]  # fmt: skip
    events = [
        RunEvent(at=float(n), kind="joined", board="weak-1", text=f"weak-1 joined, {n}") for n in range(30, 0, -1)
    ]
    return Snapshot(
        name="big", run="big-1", algorithm="fedavg", dataset="digits", phase="training", broker_connected=True,
        round=21, rounds=50, tasks=40, replies=3, awaited=list(range(3, 40)), history=[row(n) for n in range(1, 21)],
        boards=boards, events=events, started_at=900.0,
    )  # fmt: skip


def screen(snapshot: Snapshot, width: int = 80, height: int | None = 24, **known: str) -> list[str]:
    lines = screen_lines(WatchState(snapshot, "http://page", **known), 1000.0, width, height)
    assert all(line.cell_len <= width and line.plain.isprintable() for line in lines)
    assert height is None or len(lines) <= height
    return [line.plain for line in lines]


def test_a_usual_terminal_shows_the_run_its_curves_the_worst_boards_and_the_latest_events() -> None:
    lines = screen(busy_run(), trouble="no status page answers")
    assert len(lines) == 24
    assert lines[0] == "no status page answers; trying again"
    assert lines[1] == "big: fedavg on digits"
    assert lines[3].startswith("1 min 40 s elapsed, about 30 s left")
    assert lines[4] == "accuracy 0.2000, loss 2.0000"
    assert lines[5] == "Warning: pi-2 is offline, and 3 more"
    assert lines[7].split("  ")[0] == "accuracy 0.0100 to 0.2000, now 0.2000"
    boards = lines[lines.index(next(line for line in lines if line.startswith("board "))) + 1 :]
    assert [line.split()[:2] for line in boards[:4]] == [
        ["pi-2", "offline"], ["pi-10", "offline"], ["pi-1", "silent"], ["pi-0", "late"],
    ]  # fmt: skip
    assert any(line.startswith("and 3") and line.endswith(" more online") for line in boards)
    assert lines[lines.index("events") + 1].endswith("  weak-1 joined, 30")


def test_without_a_limit_every_board_has_a_line() -> None:
    assert sum(line.startswith(("weak-", "pi-")) for line in screen(busy_run(), height=None)) == 40


@each(range(1, 60))
def test_low_terminals(height: int) -> None:
    lines = screen(busy_run(), 60, height)
    assert any(line.startswith("Round 21/50") for line in lines)


@given(st.integers(20, 200), st.integers(1, 60))
def test_any_terminal(width: int, height: int) -> None:
    screen(busy_run(), width, height)


def test_nothing_is_known_yet() -> None:
    assert screen(Snapshot(), trouble="no broker") == ["no broker; trying again", "No run yet at http://page"]


def test_what_the_source_does_not_report_is_named() -> None:
    assert "no scores" in screen(busy_run(), unknown="no scores")


@pytest.mark.parametrize("number", [1e300, -1e300, math.inf, -math.inf, math.nan])
def test_impossible_numbers_and_hostile_texts(number: float) -> None:
    text = "\x1b[2J\n\u202e" + "9" * 5000
    board = BoardStatus(
        agent=text, health="late", reason=text, last_seen=number, temperature=number, power=number, memory_used=10**30,
        training={1: number}, clients=[10**9], since=number, load=number,
    )  # fmt: skip
    history = [row(n).model_copy(update={"accuracy": number, "loss": number, "seconds": number}) for n in (1, 2, 3)]
    run = Snapshot(
        name=text, run="r", algorithm=text, phase="training", broker_connected=True, round=-5, rounds=0, tasks=-1,
        started_at=number, opened_at=number, boards=[board], history=history, warning=text, awaited=[-3, 10**9],
        events=[RunEvent(at=number, kind="late", board=text, text=text)],
    )  # fmt: skip
    screen(run)


# --- curves ---------------------------------------------------------------------------------------------------


def test_a_rising_line() -> None:
    assert draw_curve([0.0, 1.0], 4, 2) == ["\u2800\u2800\u2860\u280a", "\u2860\u280a\u2800\u2800"]
    assert draw_curve([0.0, 1.0], 8, 2, ascii_only=True) == ["    _.-*", "_.-*    "]
    assert draw_curve([], 2, 1) == ["\u2800\u2800"]


@given(st.lists(NUMBERS), st.integers(1, 50), st.integers(1, 6), st.booleans())
def test_a_curve_has_its_size_whatever_the_values(
    values: list[float], width: int, height: int, ascii_only: bool
) -> None:
    lines = draw_curve(values, width, height, ascii_only=ascii_only)
    assert [len(line) for line in lines] == [width] * height


def test_a_peak_of_a_long_run_is_where_it_was() -> None:
    values = [math.exp(-(((n - 7500) / 500) ** 2)) for n in range(10_000)]
    top = draw_curve(values, 40, 4)[0]
    assert {place for place, char in enumerate(top) if char != "\u2800"} <= set(range(28, 33))
