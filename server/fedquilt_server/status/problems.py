"""The problems of a run, worst first, and the order of boards from the worst to the best. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fedquilt_common.plurals import counted
from fedquilt_server.status.run_event import EventLevel
from fedquilt_server.status.snapshot import CLIENT_FAILED, ENDED, BoardStatus, HealthState, Snapshot

SEVERITY: Final[tuple[HealthState, ...]] = (
    "offline", "unreachable", "silent", "out of memory", "too small", "never seen", "throttled", "hot", "late",
    "dropped", "restarted", "online",
)  # fmt: skip
"""The states of a board, worst first."""
_HARMLESS: Final[frozenset[HealthState]] = frozenset({"dropped", "restarted", "online"})
_LISTED_ELSEWHERE: Final = _HARMLESS | {"unreachable"}
_DIGITS: Final = re.compile(r"([0-9]+)")
_VERBS: Final[dict[str, str]] = {"never seen": "has never connected"}


@dataclass(frozen=True)
class RunProblem:
    """One problem.

    Attributes:
        text: one sentence for people, without its full stop.
        board: the agent that it concerns; None for the run.
    """

    level: EventLevel
    text: str
    board: str | None = None


@lru_cache(maxsize=4096)
def natural_key(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts weak-2 before weak-10. The same names are sorted several times a second."""
    return tuple(_part_key(part) for part in _DIGITS.split(name) if part)


def _part_key(part: str) -> tuple[bool, int, str]:
    """Compare numbers by length first: a name may hold more digits than Python converts."""
    if not _DIGITS.fullmatch(part):
        return (True, 0, part.lower())
    digits = part.lstrip("0")
    return (False, len(digits), digits)


def sort_worst_first(boards: Iterable[BoardStatus]) -> list[BoardStatus]:
    """Sort boards by their health, those of the same health by name."""
    return sorted(boards, key=lambda board: (SEVERITY.index(board_health(board)), natural_key(board.agent)))


def board_health(board: BoardStatus) -> HealthState:
    """Return a board's health; a board without a connection is offline."""
    return "offline" if not board.online and board.health == "online" else board.health


def worst_problem(snapshot: Snapshot) -> str:
    """Return one sentence without its full stop about the worst problem; empty without one."""
    problems = list_problems(snapshot)
    others = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return problems[0].text + others if problems else ""


def list_problems(snapshot: Snapshot) -> list[RunProblem]:
    """List the problems of a run, worst first. After the run's end, a board that leaves is not a problem."""
    if snapshot.phase in ENDED:
        return [*_ending(snapshot), *_divergence(snapshot)]
    return [
        *_divergence(snapshot),
        *_broker(snapshot),
        *_failing_clients(snapshot),
        *_declining(snapshot),
        *_sites(snapshot),
        *_boards(snapshot),
    ]


def _ending(s: Snapshot) -> Iterator[RunProblem]:
    if s.phase != "finished":
        yield RunProblem("error" if s.phase == "failed" else "warning", s.message or f"The run is {s.phase}")


def _divergence(s: Snapshot) -> Iterator[RunProblem]:
    if s.warning:
        yield RunProblem("error", s.warning.rstrip("."))


def _broker(s: Snapshot) -> Iterator[RunProblem]:
    if s.name and not s.broker_connected:
        yield RunProblem("error", "The coordinator has no connection to the broker")


def _failing_clients(s: Snapshot) -> Iterator[RunProblem]:
    if s.failing:
        client, reason = next(iter(s.failures.items()), (None, ""))
        example = f": client {client}: {reason.removeprefix(CLIENT_FAILED)}" if client is not None else ""
        yield RunProblem("error", f"{s.failing} of {s.tasks} clients fail{example}")


def _declining(s: Snapshot) -> Iterator[RunProblem]:
    if declined := [row for row in s.privacy if row.declined]:
        example = f"client {declined[0].client}: {declined[0].declined.rstrip('.')}"
        yield RunProblem("warning", f"{counted(len(declined), 'client')} declined: {example}")


def _sites(s: Snapshot) -> Iterator[RunProblem]:
    """Yield each site that is cut off, once for all boards behind it."""
    boards = (board for board in s.boards if not board.is_relay)
    behind = Counter(board.site for board in boards if board_health(board) == "unreachable")
    for site in sorted(behind, key=natural_key):
        yield RunProblem("warning", f"Site {site} is cut off ({counted(behind[site], 'board')} behind it)")


def _boards(s: Snapshot) -> Iterator[RunProblem]:
    """Yield the boards that are not well, except those whose site is cut off.

    Those that a waiting run has never seen are listed elsewhere.
    """
    for board in sort_worst_first(one for one in s.boards if board_health(one) not in _LISTED_ELSEWHERE):
        health = board_health(board)
        if health != "never seen" or s.phase != "waiting":
            yield RunProblem("warning", _board_text(board, health), board.agent)


def _board_text(board: BoardStatus, health: HealthState) -> str:
    reason = board.reason.rstrip(".")
    if board.is_relay:
        waiting = "the replies of its boards wait there" if health == "offline" else reason
        return f"The relay of site {board.site} is {health}{f': {waiting}' if waiting else ''}"
    if reason.startswith(health):
        return f"{board.agent} is {reason}"
    return f"{board.agent} {_VERBS.get(health, f'is {health}')}{f': {reason}' if reason else ''}"
