"""The first sentences of a report: how many runs, which are averaged, how."""

from __future__ import annotations

from fedquilt_common import __version__
from fedquilt_common.plurals import counted
from fedquilt_server.library.quantities import DIFFERENT_TASKS, QUANTITIES, have_different_tasks
from fedquilt_server.report.contents import ReportContents
from fedquilt_server.report.run_tables import MOST_NAMED


def describe_runs(contents: ReportContents) -> list[str]:
    """Return what the report is made of, in sentences."""
    given, averaged = len(contents.runs), contents.counted
    lines = [f"{averaged} of {_runs(given)} averaged, in {counted(len(contents.groups), 'group')}."]
    if averaged < given:
        lines.append(f"{_runs(given - averaged)} not averaged: {_name_excluded(contents)}.")
    if contents.groups:
        lines.append("Runs with equal settings, except for the seed, form a group. Deviations are sample standard "
                     "deviations over the runs of a group (divisor n - 1).")  # fmt: skip
    if have_different_tasks([run.rounds for group in contents.groups for run in group.runs]):
        lines.append(f"{DIFFERENT_TASKS}.")
    elif contents.score is None and contents.groups:
        lines.append("No run was evaluated, so there are no scores.")
    elif contents.score is not None:
        lines.append(
            f"Runs are compared by {QUANTITIES[contents.score].heading}: {QUANTITIES[contents.score].meaning}."
        )
    return [*lines, f"Made by fedquilt {__version__}."]


def _name_excluded(contents: ReportContents) -> str:
    excluded = [run for run in contents.runs if not run.counts]
    named = [f"{run.label} ({run.status})" for run in excluded[:MOST_NAMED]]
    more = len(excluded) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _runs(number: int) -> str:
    return f"{counted(number, 'run')} {'is' if number == 1 else 'are'}"
