"""The boards of a run as lines that fit a terminal: worst first, as many as fit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rich.text import Text

from fedquilt_server.status.problems import board_health, sort_worst_first
from fedquilt_server.status.run_lines import fit
from fedquilt_server.status.snapshot import BoardStatus, HealthState
from fedquilt_server.status.units import memory, percent, whole_duration
from fedquilt_server.status.waiting import ranges

LEAST_IMPORTANT: Final = ("power", "seen", "temperature", "memory", "training", "clients")
"""The columns that a narrow terminal does not show; the first one goes first."""
CLIENTS_WIDTH: Final = 14
NAME_WIDTH: Final = 24
STYLES: Final[Mapping[HealthState, str]] = {
    "offline": "red", "unreachable": "red", "silent": "red", "out of memory": "yellow", "too small": "yellow",
    "throttled": "yellow", "hot": "yellow", "late": "yellow", "restarted": "yellow", "never seen": "dim",
}  # fmt: skip


def board_lines(boards: Sequence[BoardStatus], now: float, width: int, height: int | None) -> list[Text]:
    """Return a heading and a line for each board, worst first.

    Args:
        boards: the boards.
        now: Unix time in seconds.
        width: characters of a line.
        height: lines at most; a last line then counts the boards that do not fit; None: no limit.
    """
    if not boards or (height is not None and height < 2):
        return []
    ordered = sort_worst_first(boards)
    shown = len(ordered) if height is None or len(ordered) < height else max(height - 2, 0)
    rows = [_cells(board, now) for board in ordered[:shown]]
    widths = choose_widths(rows, width)
    heading = fit(_join({name: name for name in widths}, widths), width, "dim")
    lines = [fit(_join(row, widths), width, STYLES.get(board_health(board), "")) for row, board in zip(
        rows, ordered, strict=False
    )]  # fmt: skip
    return [heading, *lines, *([fit(count_rest(ordered[shown:]), width, "dim")] if shown < len(ordered) else [])]


def count_rest(boards: Sequence[BoardStatus]) -> str:
    """Count boards by their health, such as "and 30 more online, 2 late"."""
    counts = Counter(board_health(board) for board in boards)
    first, *others = [f"{count} more {health}" for health, count in counts.items()]
    return ", ".join([f"and {first}", *(other.replace(" more", "") for other in others)])


def choose_widths(rows: Sequence[Mapping[str, str]], width: int) -> dict[str, int]:
    """Return the columns to show, with their widths: those that have a value and fit."""
    names = [name for name in (rows[0] if rows else {"board": ""}) if any(row[name] for row in rows) or name == "board"]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) if rows else len(name) for name in names}
    for name in LEAST_IMPORTANT:
        if sum(widths.values()) + 2 * len(widths) - 2 > width:
            widths.pop(name, None)
    return widths


def _join(cells: Mapping[str, str], widths: Mapping[str, int]) -> str:
    return "  ".join(f"{cells[name]:<{size}}" for name, size in widths.items()).rstrip()


def _cells(board: BoardStatus, now: float) -> dict[str, str]:
    return {
        "board": fit(board.agent, NAME_WIDTH).plain,
        "state": board_health(board),
        "clients": ranges(board.clients, CLIENTS_WIDTH) if board.clients else "",
        "training": _training(board),
        "memory": memory(board.memory_used) if board.memory_used else "",
        "temperature": "" if board.temperature is None else f"{board.temperature:.0f} °C",
        "power": "" if board.power is None else f"{board.power:.1f} W",
        "seen": whole_duration(now - board.last_seen) if board.last_seen else "",
    }


def _training(board: BoardStatus) -> str:
    """Return the progress of the clients in training: of one, or the mean of several."""
    parts = list(board.training.values())
    return percent(sum(parts) / len(parts), 0) if parts else ""
