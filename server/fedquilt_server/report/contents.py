"""All numbers of a report, from the runs to the tables; no rendering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.library.comparison import check_target
from fedquilt_server.library.quantities import pick_score
from fedquilt_server.library.recorded_run import RecordedRun
from fedquilt_server.report.detail import (
    ClientScores,
    RunDetail,
    board_table,
    client_scores,
    client_table,
    coverage_table,
    read_detail,
    share_table,
)
from fedquilt_server.report.group_tables import cost_table, curve_table, present_scores, score_table, target_table
from fedquilt_server.report.groups import RunGroup, drop_copies, group_runs, pick_target
from fedquilt_server.report.memory_tables import client_memory_table, memory_table
from fedquilt_server.report.privacy_tables import client_privacy_table, privacy_table
from fedquilt_server.report.published import published_tables
from fedquilt_server.report.run_tables import common_settings, excluded_table, notes_of, run_table, settings_table
from fedquilt_server.report.sources import RunSources
from fedquilt_server.report.table import ReportTable
from fedquilt_server.status.scores import choose_metric
from fedquilt_server.sweep.manifest import PublishedTable


@dataclass(frozen=True)
class ReportContents:
    """A report without its form.

    Attributes:
        title: the sweep, or the folders.
        runs: every run that was given, without copies.
        groups: the averaged runs, grouped by their settings.
        score: the score of the curves; None if no run has one.
        metric: the main metric of the runs, which the clients' scores are of.
        target: the score whose costs are given; None without one.
        details: what the optional files of the averaged runs hold.
        clients: the scores of the clients.
        common: the settings that all groups have in common.
        notes: what a reader must hold beside the numbers.
        tables: the tables with rows, by name, in the order of reading.
    """

    title: str
    runs: tuple[RecordedRun, ...]
    groups: tuple[RunGroup, ...]
    score: str | None
    metric: Metric
    target: float | None
    details: tuple[RunDetail, ...]
    clients: tuple[ClientScores, ...]
    common: Mapping[str, Any]
    notes: tuple[str, ...]
    tables: Mapping[str, ReportTable]

    @property
    def counted(self) -> int:
        """The number of averaged runs."""
        return sum(len(group.runs) for group in self.groups)

    @property
    def shown(self) -> list[RunDetail]:
        """The details of the first run of each group, which the report shows."""
        first = {group.runs[0].folder for group in self.groups}
        return [detail for detail in self.details if detail.run.folder in first]


def make_contents(
    sources: RunSources, published: Sequence[PublishedTable] = (), target: float | None = None
) -> ReportContents:
    """Group the runs, average them and fill the tables.

    Args:
        sources: the runs.
        published: figures of papers, beside those that a sweep names.
        target: the score whose costs are given; None for the highest step of 0.05 that every run reached.

    Raises:
        ExperimentError: the target is not a possible score, or the runs have different learning tasks.
    """
    runs, copies = drop_copies(sources.runs)
    groups = group_runs(runs, sources.axes)
    rounds = [run.rounds for group in groups for run in group.runs]
    score = pick_score(rounds)
    check_target(rounds, target)
    if target is None and score:
        target = pick_target(groups, score)
    notes = [*sources.notes, *notes_of(runs, groups, copies)]
    details = [read_detail(group, run, notes) for group in groups for run in group.runs]
    metric = choose_metric([row for group in groups for run in group.runs for row in run.rounds])
    clients = client_scores(groups, details, metric)
    shown = [detail for detail in details if any(detail.run is group.runs[0] for group in groups)]
    tables = [
        *_group_tables(groups, score, target), memory_table(groups), client_memory_table(groups),
        privacy_table(runs), client_privacy_table(runs),
        *published_tables([*sources.published, *published], groups),
        client_table(clients, metric), board_table(shown), coverage_table(shown), share_table(shown),
        run_table(runs, groups, score), excluded_table(runs), settings_table(groups),
    ]  # fmt: skip
    return ReportContents(
        sources.title, tuple(runs), tuple(groups), score, metric, target, tuple(details), tuple(clients),
        common_settings(groups), tuple(notes), {table.name: table for table in tables if table.rows},
    )  # fmt: skip


def _group_tables(groups: Sequence[RunGroup], score: str | None, target: float | None) -> Iterator[ReportTable]:
    if present_scores(groups):
        yield score_table(groups)
    if score and target is not None:
        yield target_table(groups, score, target)
    if groups:
        yield cost_table(groups)
    if score:
        yield curve_table(groups, score)


ONLY_CSV: Final = frozenset({"curves", "coverage-boards", "memory-clients", "privacy-clients"})
"""Tables that are too long for people."""
