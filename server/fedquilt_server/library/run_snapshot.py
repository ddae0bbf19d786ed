"""The snapshot of a recorded run: its files, in the form in which the page shows a run.

A file that is missing or damaged costs only its part, and a note names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fedquilt_common.experiment.sections import Budget
from fedquilt_common.terminal_text import printable
from fedquilt_server.history.history import EVENTS_KEPT, ROUNDS_KEPT
from fedquilt_server.library.recorded_run import ESTIMATE_NOTES, RecordedRun, RecordedStatus, read_run
from fedquilt_server.library.run_files import BoardRow, iterate_latest_events, iterate_latest_rows, read_coverage
from fedquilt_server.status.agent_list import MOST_SHOWN
from fedquilt_server.status.budget import BudgetMeter, BudgetUse
from fedquilt_server.status.recorded import recorded_snapshot
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.run_file_names import BOARDS, COVERAGE, EVENTS, REPLIES
from fedquilt_server.status.snapshot import BoardStatus, RunPhase, Snapshot

MOST_NOTES: Final = 20
LAGGING: Final = "the page of the run does not answer, so this shows its files: they may lag by some rounds"
_PHASES: Final[dict[RecordedStatus, RunPhase]] = {
    "finished": "finished", "failed": "failed", "stopped": "stopped", "running": "training",
    "interrupted": "interrupted", "unknown": "unknown", "damaged": "damaged", "pending": "waiting",
}  # fmt: skip
_PARTS: Final = {BOARDS: "boards", REPLIES: "timeline", EVENTS: "events"}
"""Files that every run has, and the part of the page that shows them."""


def read_snapshot(folder: Path) -> Snapshot:
    """Return what the files of a run folder hold, whatever their state."""
    run = read_run(folder)
    notes = [LAGGING] if run.status == "running" else []
    replies = list(iterate_latest_rows(folder / REPLIES, ReplyRow, notes))
    parts: dict[str, Any] = {
        "boards": _read_boards(folder, replies, notes),
        "reply_rows": _latest_rounds(replies),
        "events": _read_events(folder / EVENTS, notes),
        "coverage": read_coverage(folder / COVERAGE, notes),
        "budget": _read_budget(run),
    }
    notes += [*_own_notes(run), *_missing_parts(run)]
    return _base(run).model_copy(update={**parts, "notes": _shorten(notes)})


def _base(run: RecordedRun) -> Snapshot:
    """Return what ``result.json`` and ``experiment.yaml`` hold."""
    planned = run.planned or 0
    known = recorded_snapshot(run.result, planned) if run.result else _without_result(run, planned)
    state = {"phase": _PHASES[run.status], "message": printable(run.reason), "started_at": run.started or 0.0}
    return known.model_copy(update={**state, "recorded": True})


def _without_result(run: RecordedRun, planned: int) -> Snapshot:
    settings = run.settings or {}
    names = {"name": settings.get("name"), "algorithm": _inner(settings, "algorithm", "name"),
             "dataset": _inner(settings, "data", "set")}  # fmt: skip
    shown = {key: printable(value) for key, value in names.items() if isinstance(value, str)}
    base = {"name": printable(run.folder.name), "rounds": max(0, planned), "broker_connected": True}
    return Snapshot.model_validate({**base, **shown})


def _inner(settings: Any, section: str, key: str) -> object:
    found = settings.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _latest_rounds(rows: Iterable[ReplyRow]) -> list[ReplyRow]:
    """Return the rows of the last ``ROUNDS_KEPT`` rounds, oldest first."""
    rounds = defaultdict[int, list[ReplyRow]](list)
    for row in rows:
        rounds[row.place[0]].append(row)
        if len(rounds) > ROUNDS_KEPT:
            del rounds[min(rounds)]
    return [row for number in sorted(rounds) for row in rounds[number]]


def _read_boards(folder: Path, replies: Sequence[ReplyRow], notes: list[str]) -> list[BoardStatus]:
    """Return the boards with their clients; without ``boards.csv``, those that replied."""
    clients = _clients_of(replies)
    rows = iterate_latest_rows(folder / BOARDS, BoardStatus, notes, without=("clients",))  # only their number
    found = {row.agent: row for row in islice(rows, MOST_SHOWN)} or {name: BoardStatus(agent=name) for name in clients}
    counts = {row.agent: row.clients for row in iterate_latest_rows(folder / BOARDS, BoardRow, [])}
    return [_with_clients(found[name], clients.get(name, []), counts.get(name, 0)) for name in sorted(found)]


def _with_clients(board: BoardStatus, clients: list[int], count: int) -> BoardStatus:
    return board.model_copy(update={"clients": clients, "unnamed_clients": max(0, count - len(clients))})


def _clients_of(replies: Sequence[ReplyRow]) -> dict[str, list[int]]:
    """Return the clients of which each agent sent the newest reply that was not rejected."""
    hosts = {row.client: row.agent for row in replies if row.client is not None and row.outcome != "rejected"}
    found = defaultdict[str, list[int]](list)
    for client, agent in sorted(hosts.items()):
        found[agent].append(client)
    return found


def _read_events(path: Path, notes: list[str]) -> list[RunEvent]:
    """Return the latest events, newest first."""
    return list(iterate_latest_events(path, notes))[: -EVENTS_KEPT - 1 : -1]


def _read_budget(run: RecordedRun) -> list[BudgetUse]:
    """Return what the run used of its budget; nothing if the recorded limits are invalid."""
    try:
        meter = BudgetMeter(Budget.model_validate((run.settings or {}).get("budget") or {}))
    except ValidationError:
        return []
    for row in run.rounds:
        meter.take(row)
    return meter.uses


def _own_notes(run: RecordedRun) -> list[str]:
    """Return the notes of the run but for those that the page shows in another place."""
    shown = [*ESTIMATE_NOTES.values(), *(run.result.warnings[:1] if run.result else [])]
    return [note for note in run.notes if note not in shown]


def _missing_parts(run: RecordedRun) -> Iterator[str]:
    """Yield a note for each file that is missing although a round is finished."""
    if run.rounds:
        for name, part in _PARTS.items():
            if not (run.folder / name).is_file():
                yield f"the run folder has no {name}, so the page lacks the {part}"


def _shorten(notes: Sequence[str]) -> list[str]:
    more = len(notes) - MOST_NOTES
    return [*map(printable, notes[:MOST_NOTES]), *([f"and {more} more notes"] if more > 0 else [])]
