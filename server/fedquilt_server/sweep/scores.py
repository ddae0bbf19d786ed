"""The final scores of a sweep's runs: mean and deviation over the seeds of each case."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedquilt_common.errors import RunFolderError
from fedquilt_common.learning_tasks.metrics import LOCAL_METRICS, MAIN_METRICS, SECOND_METRICS
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.status.units import DASH
from fedquilt_server.sweep.axes import value_text
from fedquilt_server.sweep.manifest import SweepManifest, SweptRun

FinalScores: TypeAlias = Mapping[str, float | int | str]
"""``final`` of a run's ``result.json``."""
MAIN_SCORES: Final = (
    *(f"{prefix}{metric.name}" for metric in MAIN_METRICS for prefix in ("", "average_")),
    *(metric.name for metric in (*SECOND_METRICS, *LOCAL_METRICS)),
    *(f"{prefix}{metric.name}" for metric in MAIN_METRICS for prefix in ("global_", "personal_")),
)
"""Scores that the terminal shows, as far as a run has them."""
_PLUS_MINUS: Final = "\N{PLUS-MINUS SIGN}"
_DEVIATIONS: Final = f"last scores: mean {_PLUS_MINUS} sample standard deviation over the runs"


@dataclass(frozen=True)
class SweepCase:
    """The runs of one case, which differ in their seed only, and the final scores of those that are finished."""

    runs: Sequence[SweptRun]
    finals: Sequence[FinalScores]

    def values(self, score: str) -> list[float]:
        """Return a score of each finished run that has it."""
        return [scores[score] for final in self.finals if score in (scores := main_scores(final))]


def main_scores(final: FinalScores) -> dict[str, float]:
    """Return the scores that a person compares first."""
    return {name: float(final[name]) for name in MAIN_SCORES if isinstance(final.get(name), int | float)}


def read_final(folder: Path) -> FinalScores:
    """Return the final scores of a run; none if its ``result.json`` cannot be read."""
    try:
        return read_result(folder).final
    except RunFolderError:
        return {}


def group_cases(folder: Path, manifest: SweepManifest) -> list[SweepCase]:
    """Return the cases of a sweep in the order of its runs.

    Args:
        folder: the folder of the sweep.
        manifest: its runs.
    """
    cases: dict[str, list[SweptRun]] = {}
    for run in manifest.runs:
        cases.setdefault(json.dumps(run.case), []).append(run)
    return [
        SweepCase(runs, [read_final(folder / run.folder) for run in runs if run.status == "finished"])
        for runs in cases.values()
    ]


def manifest_with_scores(folder: Path, manifest: SweepManifest) -> dict[str, Any]:
    """Return the content of ``sweep.json``, with ``final`` of each finished run's ``result.json``."""
    content: dict[str, Any] = json.loads(manifest.to_json())
    for run, shown in zip(manifest.runs, content["runs"], strict=True):
        shown["final"] = read_final(folder / run.folder) if run.status == "finished" else {}
    return content


def make_table(manifest: SweepManifest, cases: Sequence[SweepCase]) -> Table:
    """Return the table of the cases: what varies besides the seed, the finished runs, and the final scores."""
    axes = list(dict.fromkeys(axis for case in cases for axis in case.runs[0].case))
    scores = [name for name in MAIN_SCORES if any(case.values(name) for case in cases)]
    several = any(len(case.values(name)) > 1 for case in cases for name in scores)
    table = Table(
        title=Text(manifest.name), caption=_DEVIATIONS if several else None, box=SIMPLE_HEAD, pad_edge=False,
        show_edge=False, collapse_padding=True, min_width=cell_len(manifest.name),
    )  # fmt: skip
    for axis in axes:
        table.add_column(axis, overflow="fold")
    for name in ("runs", *(score.replace("_", " ") for score in scores)):
        table.add_column(name, justify="right")
    for case in cases:
        settings = [value_text(case.runs[0].settings[axis]) for axis in axes]
        table.add_row(
            *map(Text, settings), _describe_count(case), *(describe_values(case.values(name)) for name in scores)
        )
    return table


def describe_values(values: Sequence[float]) -> str:
    """Write the mean of some values, and their sample deviation if there are several."""
    if not values:
        return DASH
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} {_PLUS_MINUS} {statistics.stdev(values):.4f}"


def _describe_count(case: SweepCase) -> str:
    finished, total = len(case.finals), len(case.runs)
    return str(total) if finished == total else f"{finished} of {total}"
