"""The boards' state and health as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fedquilt_server.fleet.health import BoardHealth

_MIB = 1 << 20
COLUMNS = ("board", "state", "version", "training", "memory", "temperature", "power", "problems", "last seen")


def health_table(boards: Sequence[BoardHealth], now: float, trouble: str) -> Table:
    """Return the table.

    Args:
        boards: the boards.
        now: Unix time, for the age of each board's last message.
        trouble: why there is no connection to the broker; empty if there is one.
    """
    joined = sum(board.state == "joined" for board in boards)
    caption = f"{joined} of {len(boards)} boards are connected"
    table = Table(caption=f"No connection to the broker: {trouble}; trying again" if trouble else caption)
    for column in COLUMNS:
        table.add_column(column, no_wrap=column != "problems")
    for board in sorted(boards, key=lambda board: board.board):
        table.add_row(*_cells(board, now))
    return table


def _cells(board: BoardHealth, now: float) -> list[str]:
    return [
        board.board,
        _state(board),
        board.version or "-",
        ", ".join(f"{client}: {part:.0%}" for client, part in sorted(board.training.items())) or "-",
        _memory(board),
        "-" if board.temperature is None else f"{board.temperature:.0f} °C",
        "-" if board.power is None else f"{board.power:.1f} W",
        "; ".join(board.problems) or "-",
        "-" if board.last_seen is None else _age(now - board.last_seen),
    ]


def _state(board: BoardHealth) -> str:
    return f"{board.state}, {board.identity}" if board.identity in ("revoked", "expired") else board.state


def _memory(board: BoardHealth) -> str:
    if board.memory_used is None:
        return "-"
    used = f"{board.memory_used / _MIB:.0f}"
    return f"{used} of {board.memory_total / _MIB:.0f} MiB" if board.memory_total else f"{used} MiB"


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
    return f"{after.board}: {'; '.join([_state(after) + version, *after.problems])}"
