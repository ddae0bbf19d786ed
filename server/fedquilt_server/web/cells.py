"""The cells of a board: texts for people, and numbers to sort by. The template and the event stream both use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedquilt_common.plurals import counted
from fedquilt_common.wire.messages import ESTIMATE
from fedquilt_server.status.problems import SEVERITY, board_health
from fedquilt_server.status.snapshot import BoardStatus
from fedquilt_server.status.units import DASH, energy, is_number, memory, number, percent
from fedquilt_server.status.waiting import ranges
from fedquilt_server.web.text import count

BoardCells = dict[str, str | float]
"""Name of a cell -> its text; or a number to sort by or to show as a bar, where -1 means not known."""

JOBS_SHOWN: Final = 16
UNKNOWN: Final = -1.0


def format_cells(board: BoardStatus) -> BoardCells:
    """Format a board's cells."""
    health = board_health(board)
    return {
        "kind": _cut(board.kind, 40),
        "placement": _cut(board.placement.summary, 120) if board.placement is not None else "",
        "health": health,
        "rank": SEVERITY.index(health),
        "reason": _cut(board.reason, 200),
        "since": round(board.since) if is_number(board.since) else 0,
        "clients": _clients(board),
        "cores": count(board.cores),
        "workers": count(board.workers),
        **_memory_cells(board),
        "temperature": _with_unit(board.temperature, "°C"),
        "power": _power(board),
        "energy": energy(board.joules),
        "load": number(board.load, 2),
        **_training_cells(board.training),
        "accepted": str(board.accepted),
        "late": str(board.late),
        "rejected": str(board.rejected),
        "restarts": str(board.restarts),
        "seen": round(board.last_seen) if is_number(board.last_seen) else 0,
    }


def _clients(board: BoardStatus) -> str:
    if not board.unnamed_clients:
        return _cut(ranges(board.clients), 60)
    if not board.clients:
        return counted(board.unnamed_clients, "client")
    return f"{_cut(ranges(board.clients), 50)} and {board.unnamed_clients} more"


def _memory_cells(board: BoardStatus) -> BoardCells:
    used, total = board.memory_used, board.memory_total
    of = f" of {memory(total)}" if total else ""
    known = used is not None and total > 0
    return {
        "memory": f"{memory(used)}{of}",
        "memory_share": round(min(1.0, max(0.0, used / total)), 3) if known and used is not None else UNKNOWN,
        "memory_own": memory(board.memory_own),
    }


def _training_cells(training: Mapping[int, float]) -> BoardCells:
    """Return each client's progress as text, and the mean progress."""
    progress = {client: share for client, share in sorted(training.items()) if is_number(share)}
    shown = [f"{client}:\N{NO-BREAK SPACE}{percent(share, 0)}" for client, share in progress.items()]
    more = [f"and {len(shown) - JOBS_SHOWN} more"] if len(shown) > JOBS_SHOWN else []
    mean = sum(progress.values()) / len(progress) if progress else UNKNOWN
    return {"training": ", ".join(shown[:JOBS_SHOWN] + more) or DASH, "progress": round(mean, 3)}


def _power(board: BoardStatus) -> str:
    """Format the power; an estimate has a sign before it."""
    sign = "\N{ALMOST EQUAL TO}\N{NO-BREAK SPACE}" if board.power_source == ESTIMATE and is_number(board.power) else ""
    return sign + _with_unit(board.power, "W")


def _with_unit(value: float | None, unit: str) -> str:
    return f"{number(value, 1)}\N{NO-BREAK SPACE}{unit}" if is_number(value) else DASH


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
