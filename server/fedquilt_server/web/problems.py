"""The problems of a run, worst first, and the line that names the worst one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fedquilt_server.status.run_event import EventLevel
from fedquilt_server.status.snapshot import ENDED, BoardStatus, HealthState, Snapshot
from fedquilt_server.status.waiting import ranges
from fedquilt_server.web.cells import sort_boards

_HARMLESS: Final[frozenset[HealthState]] = frozenset({"online", "restarted"})


@dataclass(frozen=True)
class RunProblem:
    """One problem.

    Attributes:
        text: one sentence for people.
        board: the agent that it concerns; None for the run.
    """

    level: EventLevel
    text: str
    board: str | None = None


def list_problems(snapshot: Snapshot) -> list[RunProblem]:
    """List the problems of a run, worst first."""
    return [*_run_problems(snapshot), *_failing_clients(snapshot), *_board_problems(snapshot)]


def _run_problems(s: Snapshot) -> Iterator[RunProblem]:
    if s.phase == "failed":
        yield RunProblem("error", f"The run failed: {s.message or 'the coordinator gives no reason'}")
    if s.phase == "stopped":
        yield RunProblem("warning", f"The run was stopped: {s.message}" if s.message else "The run was stopped.")
    if s.warning:
        yield RunProblem("error", s.warning)
    if not s.broker_connected and s.phase not in ENDED:
        yield RunProblem("error", "The coordinator is not connected to the broker.")


def _failing_clients(s: Snapshot) -> Iterator[RunProblem]:
    if s.failing and s.phase not in ENDED:
        first, reason = next(iter(s.failures.items()), (None, ""))
        who = f"Client {first} fails" if first is not None else f"{s.failing} clients fail"
        others = f" ({s.failing} clients fail)" if first is not None and s.failing > 1 else ""
        yield RunProblem("error", f"{who}: {reason}{others}" if reason else f"{who}{others}.")


def _board_problems(s: Snapshot) -> Iterator[RunProblem]:
    """Yield the boards that are not well. After the end, a board that leaves is none."""
    if s.phase in ENDED:
        return
    awaited = s.phase == "waiting"  # the page then lists the missing boards with their commands
    for board in sort_boards([one for one in s.boards if one.health not in _HARMLESS]):
        if not (awaited and board.health == "never seen"):
            yield RunProblem("warning", _board_text(board), board.agent)


def _board_text(board: BoardStatus) -> str:
    hosted = f" It hosts clients {ranges(board.clients)}." if len(board.clients) > 1 else ""
    hosted = f" It hosts client {board.clients[0]}." if len(board.clients) == 1 else hosted
    state = {"late": "is late", "never seen": "has never connected"}.get(board.health, f"is {board.health}")
    reason = board.reason.rstrip(".")
    if reason.startswith(board.health):
        return f"{board.agent} is {reason}.{hosted}"
    return f"{board.agent} {state}{f': {reason}' if reason else ''}.{hosted}"


def describe_worst(problems: Iterable[RunProblem]) -> tuple[RunProblem, int] | None:
    """Return the worst problem and how many others there are; None without a problem."""
    listed = list(problems)
    return (listed[0], len(listed) - 1) if listed else None
