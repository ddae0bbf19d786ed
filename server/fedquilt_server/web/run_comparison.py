"""What the page and the API show of several runs side by side: curves, scores, costs, and the settings that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.library.comparison import ComparedRow, Comparison, compare_runs
from fedquilt_server.library.recorded_run import RecordedRun, RecordedStatus, name_runs, read_run
from fedquilt_server.library.run_library import LibraryRun
from fedquilt_server.status.scores import choose_metric
from fedquilt_server.web.curves import COLUMNS, make_curves

MOST_COMPARED: Final = 8
"""Runs that one comparison shows: more curves could not be told apart."""
_COLUMNS: Final = ("round", "value", "loss", "bytes", "seconds")


class ComparedCurve(BaseModel):
    """The curves of one run: each list has a value for each point. Bytes and seconds are sums since its beginning."""

    model_config = ConfigDict(frozen=True)

    id: str
    label: str = Field(description="a name that no other run of the comparison has")
    address: str = Field(description="of the run's page, from the root of this server")
    status: RecordedStatus
    round: list[float | None]
    value: list[float | None] = Field(description="the score that `measure` names; null where it was not evaluated")
    loss: list[float | None]
    bytes: list[float | None]
    seconds: list[float | None]


class RunComparison(BaseModel):
    """Runs side by side. Numbers are in base units; null is a value that is not recorded."""

    model_config = ConfigDict(frozen=True)

    measure: str = Field(description="the score of the curves, such as `accuracy`, `r2` or `map50`")
    title: str = Field(description="its heading")
    share: bool = Field(description="whether it is from 0 to 1 and shown in per cent")
    curves: list[ComparedCurve]
    results: dict[str, list[float | str | None]] = Field(description="scores and costs: a value for each run")
    differences: dict[str, list[Any]] = Field(description="settings that differ: a value for each run, as text")
    notes: list[str]


class RunsSideBySide:
    """Several runs that were read from their folders.

    Args:
        found: two or more runs of a library.
    """

    def __init__(self, found: Sequence[LibraryRun]) -> None:
        self.found = found
        self._runs = name_runs([read_run(one.folder) for one in found])
        self.comparison: Comparison = compare_runs(self._runs, None)

    @property
    def rows(self) -> list[list[str]]:
        """The table of results as texts: a heading, and a text for each run."""
        return [row.texts() for row in self.comparison.rows if row.key != "status"]

    def as_data(self) -> RunComparison:
        """Return everything as data."""
        known = next((run for run in self._runs if run.rounds), None)
        metric = choose_metric(known.rounds if known else ())
        return RunComparison(
            measure=metric.name,
            title=metric.title,
            share=metric.unit == "share",
            curves=list(self._curves(metric)),
            results={row.key: _values(row) for row in self.comparison.rows},
            differences=self.comparison.differences,
            notes=list(self.comparison.notes),
        )

    def _curves(self, metric: Metric) -> Iterator[ComparedCurve]:
        for one, run in zip(self.found, self._runs, strict=True):
            yield ComparedCurve(
                id=one.id, label=run.label, address=f"runs/{one.id}/", status=run.status, **_points(run, metric)
            )


def _points(run: RecordedRun, metric: Metric) -> dict[str, Any]:
    points = make_curves(run.rounds, metric).points
    return {name: [point[COLUMNS.index(name)] for point in points] for name in _COLUMNS}


def _values(row: ComparedRow) -> list[float | str | None]:
    return list(row.values)
