"""What went wrong in a run that was finished all the same: its warnings and errors, counted by their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedquilt_server.report.run_files import EVENTS, iterate_events
from fedquilt_server.report.table import Column, ReportTable


@dataclass
class Incidents:
    """The warnings or errors of one kind in one run.

    Attributes:
        kind: the kind of the events.
        number: how many there are.
        boards: the boards that they concern.
        last: the text of the last one.
    """

    kind: str
    number: int = 0
    boards: set[str] = field(default_factory=set)
    last: str = ""


def read_incidents(folder: Path, notes: list[str]) -> list[Incidents]:
    """Count the warnings and errors of a run by kind, in the order of their first events."""
    found = dict[str, Incidents]()
    for event in iterate_events(folder / EVENTS, notes):
        if event.level != "info":
            one = found.setdefault(event.kind, Incidents(event.kind))
            one.number, one.last = one.number + 1, event.text
            one.boards |= {event.board} if event.board else set()
    return list(found.values())


def incident_table(runs: Sequence[tuple[str, int | None, Sequence[Incidents]]]) -> ReportTable:
    """Return the warnings and errors of each run: its group, its seed, and what was counted."""
    columns = (
        Column("group", "group"), Column("seed", "seed", "count"), Column("kind", "kind"),
        Column("number", "events", "count"),
        Column("boards", "boards", "count", "boards that the events concern; 0: the coordinator"),
        Column("last", "the last one"),
    )  # fmt: skip
    rows = tuple(
        (group, seed, one.kind, one.number, len(one.boards), one.last) for group, seed, found in runs for one in found
    )
    meaning = "Warnings and errors of every averaged run, from events.jsonl."
    return ReportTable("incidents", "Warnings and errors", meaning, columns, rows)
