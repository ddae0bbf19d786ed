"""The worst problem of a run in one sentence, and the order of boards from the worst to the best. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fedquilt_server.status.snapshot import CLIENT_FAILED, ENDED, BoardStatus, HealthState, Snapshot

SEVERITY: Final[tuple[HealthState, ...]] = (
    "offline", "silent", "out of memory", "throttled", "hot", "late", "restarted", "never seen", "online",
)  # fmt: skip
"""The states of a board, worst first."""
_DIGITS: Final = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[object, ...]:
    """Return a key that sorts weak-2 before weak-10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name))


def sort_worst_first(boards: Iterable[BoardStatus]) -> list[BoardStatus]:
    """Sort boards by their health, those of the same health by name."""
    return sorted(boards, key=lambda board: (SEVERITY.index(board_health(board)), natural_key(board.agent)))


def board_health(board: BoardStatus) -> HealthState:
    """Return a board's health; a board without a connection is offline."""
    return "offline" if not board.online and board.health == "online" else board.health


def worst_problem(snapshot: Snapshot) -> str:
    """Return one sentence without its full stop about the worst problem; empty without one."""
    if snapshot.phase in ENDED:
        return snapshot.message if snapshot.phase != "finished" else snapshot.warning
    if snapshot.name and not snapshot.broker_connected:
        return "No connection to the broker; the coordinator tries again"
    return snapshot.warning or _failing_clients(snapshot) or _worst_board(snapshot.boards)


def _failing_clients(snapshot: Snapshot) -> str:
    if not snapshot.failing:
        return ""
    client, reason = next(iter(snapshot.failures.items()), (None, ""))
    example = f": client {client}: {reason.removeprefix(CLIENT_FAILED)}" if client is not None else ""
    return f"{snapshot.failing} of {snapshot.tasks} clients fail{example}"


def _worst_board(boards: Iterable[BoardStatus]) -> str:
    problems = [board for board in sort_worst_first(boards) if board_health(board) not in ("online", "never seen")]
    if not problems:
        return ""
    worst = problems[0]
    reason = f": {worst.reason}" if worst.reason else ""
    more = len(problems) - 1
    others = f"; {more} more board{'s have' if more > 1 else ' has'} a problem" if more else ""
    return f"{worst.agent} is {board_health(worst)}{reason}{others}"
