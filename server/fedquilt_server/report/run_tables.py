"""Tables with a row for each run: all runs, those that are not averaged, and how settings differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fedquilt_server.library.quantities import QUANTITIES, have_different_tasks, last_value
from fedquilt_server.library.recorded_run import RecordedRun, total_cost
from fedquilt_server.library.run_files import BoardRow, iterate_rows
from fedquilt_server.report.groups import RunGroup, repeated_seeds
from fedquilt_server.report.table import Column, ReportTable
from fedquilt_server.status.run_file_names import BOARDS
from fedquilt_server.status.scores import describe_tests
from fedquilt_server.status.settings import MISSING, differing_keys, show_value
from fedquilt_server.status.units import time_text

MOST_NAMED: Final = 5
"""Runs that one sentence names; the others are counted."""


def run_table(runs: Sequence[RecordedRun], groups: Sequence[RunGroup], score: str | None) -> ReportTable:
    """Return all runs, with what is recorded about their origin."""
    group_of = {run.folder: group.name for group in groups for run in group.runs}
    quantity = QUANTITIES[score] if score else None
    columns = (
        Column("run", "run", "text", "name of the run folder"),
        Column("group", "group", "text", "a dash: not averaged"),
        Column("seed", "seed", "count"),
        Column("status", "status"),
        Column("rounds", "rounds", "count", "finished rounds"),
        *([Column(f"final_{quantity.name}", f"final {quantity.heading}", quantity.unit)] if quantity else []),
        Column("seconds", "time", "seconds"),
        Column("started", "started"),
        Column("machine", "boards", "text", "kinds of boards and their cores; a dash: not recorded"),
    )
    rows = tuple(
        (run.label, group_of.get(run.folder), run.seed, run.status, len(run.rounds),
         *([last_value(run.rounds, quantity.name)] if quantity else []), total_cost(run, "seconds"),
         time_text(run.started), boards_text(run.folder))
        for run in runs
    )  # fmt: skip
    return ReportTable("runs", "Runs", "Every run that the report was given.", columns, rows)


def boards_text(folder: Path) -> str | None:
    """Describe the boards in ``boards.csv``, such as "2 x strong (4 cores)"."""
    boards = list(iterate_rows(folder / BOARDS, BoardRow, []))
    kinds = Counter(f"{board.kind} ({board.cores} cores)" if board.cores else board.kind for board in boards)
    return ", ".join(f"{number} x {kind}" for kind, number in kinds.items()) or None


def excluded_table(runs: Sequence[RecordedRun]) -> ReportTable:
    """Return the runs that are not averaged, each with the reason."""
    columns = (Column("run", "run"), Column("status", "status"), Column("reason", "reason"),
               Column("seed", "seed", "count"), Column("rounds", "finished rounds", "count"))  # fmt: skip
    rows = tuple(
        (run.label, run.status, run.reason or "no round is recorded", run.seed, len(run.rounds))
        for run in runs if not run.counts
    )  # fmt: skip
    return ReportTable("not-averaged", "Not averaged", "These runs are in no mean and no curve.", columns, rows)


def settings_table(groups: Sequence[RunGroup]) -> ReportTable:
    """Return the settings in which the groups differ, one row for each."""
    differ = differing_keys([group.settings for group in groups])
    columns = (Column("key", "setting"), *(Column(group.name, group.name) for group in groups))
    rows = tuple((key, *(show_value(group.settings.get(key, MISSING)) for group in groups)) for key in differ)
    return ReportTable("settings", "Settings that differ", "A dash: the group does not have it.", columns, rows)


def common_settings(groups: Sequence[RunGroup]) -> Mapping[str, Any]:
    """Return the settings that all groups have in common."""
    if not groups:
        return {}
    differ = set(differing_keys([group.settings for group in groups]))
    return {key: show_value(value) for key, value in groups[0].settings.items() if key not in differ}


def notes_of(runs: Sequence[RecordedRun], groups: Sequence[RunGroup], copies: Mapping[str, str]) -> list[str]:
    """Return what a reader must hold beside the numbers."""
    notes = [f"{copy} is a copy of {original}: it counts once" for copy, original in copies.items()]
    for group in groups:
        for seed, several in repeated_seeds(group).items():
            names = ", ".join(run.label for run in several)
            notes.append(f"{group.name}: {len(several)} runs have seed {seed} ({names}): each of them counts")
        if any(run.settings is None for run in group.runs):
            notes.append(f"{group.name}: the settings are not recorded, so the runs may differ in more than the seed")
    tests = describe_tests((group.name, group.runs[0].rounds) for group in groups)
    notes += [tests] if tests and not have_different_tasks([group.runs[0].rounds for group in groups]) else []
    ended = [(run.label, run.reason) for group in groups for run in group.runs if run.reason]
    notes += merge_notes(ended, len(runs))
    return notes + list(merge_notes([(run.label, note) for run in runs for note in run.notes], len(runs)))


def merge_notes(notes: Sequence[tuple[str, str]], runs: int) -> Iterator[str]:
    """Yield each note once, with the labels of the runs that it is about; their number if it is about all ``runs``."""
    for note in dict.fromkeys(note for _, note in notes):
        labels = [label for label, other in notes if other == note]
        more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
        who = f"all {runs} runs" if len(labels) == runs > 1 else ", ".join(labels[:MOST_NAMED]) + more
        yield f"{who}: {note}"
