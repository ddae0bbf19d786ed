"""The boards' state and health as a table for people, which fits the terminal and cuts no value."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedquilt_common.plurals import counted
from fedquilt_common.terminal_text import printable
from fedquilt_common.wire.messages import ESTIMATE
from fedquilt_server.fleet.health import BoardHealth
from fedquilt_server.status.units import percent

_MIB = 1 << 20
COLUMNS: Final = ("board", "state", "version", "training", "memory", "temperature", "power", "problems", "last seen")
LEAST_IMPORTANT: Final = ("power", "last seen", "temperature", "memory", "training", "version")
"""The columns that a narrow terminal does not show; the first one goes first."""
PROBLEMS_WIDTH: Final = 24
"""Characters in which a list of problems can be wrapped and read."""
_FRAME_LINES: Final = 4
_NONE: Final = "-"


def health_table(
    boards: Sequence[BoardHealth], now: float, trouble: str, width: int | None = None, height: int | None = None
) -> Group:
    """Return the table, with the number of connected boards below it.

    Args:
        boards: the boards.
        now: Unix time, for the age of each board's last message.
        trouble: why there is no connection to the broker; empty if there is one.
        width: characters of a line: the problems are wrapped, and the least important columns left out; None: no limit.
        height: lines of the terminal: the least important boards are left out, and counted; None: no limit.
    """
    cells = {board.board: _cells(board, now) for board in sorted(boards, key=lambda board: board.board)}
    widths = choose_columns(list(cells.values()), width)
    rows = {name: [_wrap(row[column], widths[column]) for column in widths] for name, row in cells.items()}
    space = None if height is None else height - _FRAME_LINES - _caption_lines(boards, trouble, width)
    shown = choose_boards(boards, {name: _height(row) for name, row in rows.items()}, space)
    table = Table()
    for column, characters in widths.items():
        table.add_column(column, width=characters, overflow="fold")
    for name in sorted(shown):
        table.add_row(*map(Text, rows[name]))
    return Group(table, Text(printable(_caption(boards, trouble, len(shown)))))


def choose_columns(rows: Sequence[Mapping[str, str]], width: int | None) -> dict[str, int]:
    """Return the columns to show and their widths.

    Board and state are always shown, problems if a board has one, and the others if a board has a value and there is
    room.

    Args:
        rows: the cells of each board by column.
        width: characters of a line; None: no limit.
    """
    full = {column: max(map(len, (column, *(row[column] for row in rows)))) for column in COLUMNS}
    shown = [column for column in COLUMNS if column in ("board", "state") or any(row[column] != _NONE for row in rows)]
    if width is None:
        return {column: full[column] for column in shown}
    least = {**full, "problems": min(full["problems"], PROBLEMS_WIDTH)}
    for column in LEAST_IMPORTANT:
        if column in shown and _line_width(least, shown) > width:
            shown.remove(column)
    spare = max(0, width - _line_width(least, shown))
    least["problems"] = min(full["problems"], least["problems"] + spare)
    return {column: least[column] for column in shown}


def _line_width(widths: Mapping[str, int], columns: Sequence[str]) -> int:
    """Return the width of a table: each column has a border and two spaces."""
    return sum(widths[column] + 3 for column in columns) + 1


def choose_boards(boards: Sequence[BoardHealth], heights: Mapping[str, int], space: int | None) -> list[str]:
    """Return the names of the boards to show: all of them, or those with problems first and those not joined last.

    Args:
        boards: the boards.
        heights: the lines of each board's row.
        space: lines for all rows; None: no limit.
    """
    names = [board.board for board in sorted(boards, key=lambda board: (_rank(board), board.board))]
    if space is None or sum(heights[name] for name in names) <= space:
        return names
    ends = accumulate(heights[name] for name in names)
    return [name for name, end in zip(names, ends, strict=True) if end <= space]


def _rank(board: BoardHealth) -> int:
    if board.problems or (board.state == "joined" and _state(board) != "joined"):
        return 0
    return {"left": 1, "joined": 2, "not joined": 3}[board.state]


def _caption(boards: Sequence[BoardHealth], trouble: str, shown: int) -> str:
    if trouble:
        return f"No connection to the broker: {trouble}; trying again"
    joined = sum(board.state == "joined" for board in boards)
    more = f"; {len(boards) - shown} more do not fit (--once prints all)" if shown < len(boards) else ""
    return f"Connected: {joined} of {counted(len(boards), 'board')}{more}"


def _caption_lines(boards: Sequence[BoardHealth], trouble: str, width: int | None) -> int:
    """Return the lines of the longest caption."""
    longest = _caption(boards, trouble, 0)
    return 1 if width is None else len(textwrap.wrap(longest, width))


def _height(row: Sequence[str]) -> int:
    return max(cell.count("\n") for cell in row) + 1


def _wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


def _cells(board: BoardHealth, now: float) -> dict[str, str]:
    cells = {
        "board": board.board,
        "state": _state(board),
        "version": board.version or _NONE,
        "training": _training(board),
        "memory": _memory(board),
        "temperature": _NONE if board.temperature is None else f"{board.temperature:.0f} °C",
        "power": _power(board),
        "problems": "; ".join(board.problems) or _NONE,
        "last seen": _NONE if board.last_seen is None else _age(now - board.last_seen),
    }
    return {column: printable(text) for column, text in cells.items()}


def _training(board: BoardHealth) -> str:
    return ", ".join(f"{client}: {percent(part, 0)}" for client, part in sorted(board.training.items())) or _NONE


def _state(board: BoardHealth) -> str:
    return f"{board.state}, {board.identity}" if board.identity in ("revoked", "expired") else board.state


def _memory(board: BoardHealth) -> str:
    if board.memory_used is None:
        return _NONE
    used = f"{board.memory_used / _MIB:.0f}"
    return f"{used} of {board.memory_total / _MIB:.0f} MiB" if board.memory_total else f"{used} MiB"


def _power(board: BoardHealth) -> str:
    if board.power is None:
        return _NONE
    return f"{'about ' if board.power_source == ESTIMATE else ''}{board.power:.1f} W"


def _age(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s ago"
    return f"{whole // 60} min ago" if whole < 3600 else f"{whole // 3600} h ago"


def describe_change(before: BoardHealth | None, after: BoardHealth) -> str:
    """Return a line about a board whose state, version or problems changed; empty if they did not."""
    if before and (before.state, before.version, before.problems) == (after.state, after.version, after.problems):
        return ""
    version = f", fedquilt {after.version}" if after.state == "joined" and after.version else ""
    return printable(f"{after.board}: {'; '.join([_state(after) + version, *after.problems])}")
