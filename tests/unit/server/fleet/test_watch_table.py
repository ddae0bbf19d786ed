"""The table of ``fedquilt boards --watch`` and ``--once`` on narrow, wide and low terminals."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from fedquilt_server.fleet.health import BoardHealth
from fedquilt_server.fleet.watch_table import COLUMNS, describe_change, health_table

GIB = 1 << 30
KITCHEN = BoardHealth(
    "kitchen", "pi4", "good", "joined", "0.1.0", [0, 1], 4 * GIB, GIB, 61.4, 4.2, 0x50005, {"0": 0.5, "1": 0.25},
    reported=True, last_seen=95.0,
)  # fmt: skip
CELLAR = BoardHealth(
    "cellar-workshop", "pi4", "revoked", "joined", "0.1.0", [2], 4 * GIB, GIB, throttled=0x50000, reported=True
)
DESK = BoardHealth("desk", "pi4", "revoked")
PROBLEMS = (
    "the voltage is too low now; it is throttled now; the voltage has been too low since the start; it has been "
    "throttled since the start"
)


def show(boards: Sequence[BoardHealth], width: int | None, height: int | None = None) -> list[str]:
    """Return the lines of the table."""
    console = Console(file=io.StringIO(), width=width or 1000, height=height or 1000, color_system=None)
    with console.capture() as shown:
        console.print(health_table(boards, 100.0, "", width, height))
    return shown.get().splitlines()


def columns(lines: list[str]) -> list[str]:
    return [cell.strip() for cell in lines[1].strip("┃").split("┃")]


def cell_text(lines: list[str], board: str, column: str) -> str:
    """Return the text of a board's cell, which may have several lines."""
    number, words, inside = columns(lines).index(column), list[str](), False
    for cells in (line.strip("│").split("│") for line in lines[3:] if line.startswith("│")):
        inside = cells[0].strip() == board or (inside and not cells[0].strip())
        words += cells[number].split() if inside else []
    return " ".join(words)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (50, ["board", "state", "problems"]),
        (80, ["board", "state", "version", "problems"]),
        (120, ["board", "state", "version", "training", "memory", "problems"]),
        (160, list(COLUMNS)),
        (None, list(COLUMNS)),
    ],
)
def test_board_state_and_problems_are_whole_at_any_width(width: int | None, expected: list[str]) -> None:
    lines = show([KITCHEN, CELLAR, DESK] if width != 50 else [KITCHEN], width)
    assert columns(lines) == expected
    assert all(len(line) <= (width or 1000) for line in lines)
    assert not any("…" in line for line in lines)
    assert cell_text(lines, "kitchen", "problems") == PROBLEMS
    if width != 50:
        assert cell_text(lines, "cellar-workshop", "state") == "joined, revoked"
        assert cell_text(lines, "desk", "state") == "not joined, revoked"


def test_a_column_without_a_value_is_left_out() -> None:
    assert columns(show([BoardHealth("a"), BoardHealth("b", state="left")], None)) == ["board", "state"]
    assert columns(show([BoardHealth("a"), BoardHealth("b", power=4.0)], 80)) == ["board", "state", "power"]


def test_an_estimated_power_is_marked() -> None:
    estimated = BoardHealth("a", power=4.0, power_source="estimate")
    lines = show([estimated, BoardHealth("b", power=5.0, power_source="sensor")], None)
    assert cell_text(lines, "a", "power") == "about 4.0 W"
    assert cell_text(lines, "b", "power") == "5.0 W"


def test_a_terminal_that_is_too_narrow_folds_every_value() -> None:
    lines = show([CELLAR], 40)
    assert all(len(line) <= 40 for line in lines)
    assert "".join("".join(line.split("│")[1].split()) for line in lines[3:-2]) == "cellar-workshop"


def test_boards_that_do_not_fit_are_counted() -> None:
    fine = [BoardHealth(f"board-{number:02}", state="joined", version="0.1.0") for number in range(37)]
    gone = BoardHealth("zoo", state="left")
    for width in (80, 120):
        lines = show([*fine, KITCHEN, CELLAR, DESK, gone], width, 24)
        assert len(lines) <= 24
        assert cell_text(lines, "kitchen", "problems") == PROBLEMS
        assert cell_text(lines, "zoo", "state") == "left"
        shown = sum(line.startswith("│ board-") for line in lines)
        assert shown > 0
        assert f"Connected: 39 of 41 boards; {41 - 3 - shown} more do not fit" in " ".join(lines)
    assert sum(line.startswith("│ board-") for line in show(fine, 80)) == 37
    assert "Connected: 37 of 37 boards" in show(fine, 80, 60)[-1]
    assert "more" not in show(fine, 80, 42)[-1]


def test_what_a_board_reports_is_literal_and_controls_no_terminal() -> None:
    version = "[/x]\x1b]0;X\x07\nb: joined"
    board = BoardHealth("a", state="joined", version=version, training={"\x1b[2J[red]": 0.5})
    shown = "[/x] ]0;X b: joined"
    lines = show([board], None)
    assert cell_text(lines, "a", "version") == shown
    assert cell_text(lines, "a", "training") == "[2J[red]: 50 %"
    assert "\x1b" not in "".join(lines)
    assert " ".join(describe_change(None, board).split()) == f"a: joined, fedquilt {shown}"
    assert "\n" not in describe_change(None, board)
