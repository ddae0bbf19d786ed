"""Figures of papers beside the runs' own, from a sweep or from a YAML file of the same form."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.learning_tasks.metrics import MAIN_METRICS
from fedquilt_common.rejections import first_problem, is_key
from fedquilt_server.library.quantities import (
    COSTS,
    LATE_ROUNDS,
    QUANTITIES,
    accumulate,
    best_value,
    last_value,
    late_value,
)
from fedquilt_server.library.recorded_run import RecordedRun
from fedquilt_server.library.scales import CellKind
from fedquilt_server.report.groups import RunGroup, settings_of
from fedquilt_server.report.mean_deviation import MeanDeviation, mean_deviation
from fedquilt_server.report.table import Cell, Column, ReportTable
from fedquilt_server.status.settings import MISSING, Settings, same_value
from fedquilt_server.sweep.manifest import PublishedFigure, PublishedTable

_TABLES = TypeAdapter(list[PublishedTable])
_LEVELS: Final = tuple(f"{metric.name}_" for metric in MAIN_METRICS if metric.unit == "share")
"""Prefixes of the scores of levels, such as ``accuracy_``."""
GAIN: Final = "gain_"
"""Prefix of a score that is measured against the baseline of its table."""
_EARLY: Final = re.compile(r"(?P<score>best_\w+)_at_(?P<percent>[1-9][0-9]?)")
"""A best score over the first part of the rounds, such as ``best_accuracy_at_50``."""
_LATE: Final = f"last_{LATE_ROUNDS}_"
"""Prefix of a mean over the last evaluated rounds, such as ``last_10_accuracy``."""
_COSTS: Final = frozenset(cost.name for cost in COSTS)
_FORM = "write a list of `source`, `note` and `figures`, each figure with `case` and `scores`; see docs/reports.md"


def read_published(path: Path) -> list[PublishedTable]:
    """Read published figures from a YAML file, which may be a sweep file that has some.

    Raises:
        ExperimentError: the file cannot be read, its form is another, or a share is above 1.
    """
    raw = load_yaml(read_text(path), str(path))
    if isinstance(raw, dict) and "published" in raw:
        raw = raw["published"]
    try:
        tables = _TABLES.validate_python([raw] if isinstance(raw, dict) else raw)
    except ValidationError as error:
        raise ExperimentError(f"{path}: {first_problem(error)}; {_FORM}") from None
    if problem := next((problem for table in tables for problem in _find_percentages(table)), None):
        raise ExperimentError(f"{path}: {problem}")
    return tables


def _find_percentages(table: PublishedTable) -> Iterator[str]:
    for figure in table.figures:
        for score, value in figure.scores.items():
            if _kind_of(score) in ("share", "points") and abs(value) > 1:
                yield f"{score}: {value:g} is no share; write a number from 0 to 1, such as 0.8308 for 83.08 %"


def figure_of(run: RecordedRun, name: str) -> float | None:
    """Return a run's own value of a published score.

    Args:
        run: a finished run.
        name: a key of ``final`` in result.json, the name of a score (its last value) with or without "best_", a cost
            (the sum over the rounds; None if a round lacks it), or
            ``client_accuracy``: the mean over the clients of their last accuracy, ``best_client_accuracy``: the best
            such mean over the rounds, or ``waste_rate``: the mean over the rounds. ``best_accuracy_at_50`` is the best
            over the first 50 % of the rounds, ``last_10_accuracy`` the mean over the last ten evaluated ones.
    """
    if early := _EARLY.fullmatch(name):
        run, name = _first_part(run, int(early["percent"])), early["score"]
    if name in _COSTS:
        sums = accumulate(run.rounds, name)
        return sums[-1] if sums else None
    if name in QUANTITIES:
        return last_value(run.rounds, name)
    if name.removeprefix(_LATE) in QUANTITIES:
        return late_value(run.rounds, name.removeprefix(_LATE))
    if name.removeprefix("best_") in QUANTITIES:
        return best_value(run.rounds, name.removeprefix("best_"))
    if name.removeprefix("best_") == "client_accuracy":
        means = [statistics.fmean(row.client_accuracy.values()) for row in run.rounds if row.client_accuracy]
        return _finite((max(means) if name.startswith("best_") else means[-1]) if means else None)
    if name == "waste_rate":
        waste = [row.waste_rate for row in run.rounds if row.waste_rate is not None]
        return _finite(statistics.fmean(waste) if waste else None)
    return _finite(run.result.final.get(name) if run.result else None)


def _first_part(run: RecordedRun, percent: int) -> RecordedRun:
    """Return the run as it was after a part of its rounds, rounded up."""
    if run.result is None:
        return run
    count = math.ceil(len(run.rounds) * percent / 100)
    return replace(run, result=run.result.model_copy(update={"rounds": list(run.rounds[:count]), "final": {}}))


def gain_of(run: RecordedRun, score: str, baselines: Sequence[RecordedRun]) -> float | None:
    """Return a run's score less that of its baseline: the most similar one with the same seed; None without one."""
    same_seed = [one for one in baselines if one.seed == run.seed]
    if not same_seed:
        return None
    base = max(same_seed, key=lambda one: _count_equal(settings_of(run), settings_of(one)))
    own, other = figure_of(run, score), figure_of(base, score)
    return None if own is None or other is None else own - other


def _count_equal(a: Settings, b: Settings) -> int:
    return sum(same_value(value, b.get(key, MISSING)) for key, value in a.items())


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def matches(group: RunGroup, case: Mapping[str, Any]) -> bool:
    """Return whether a group has every setting of a published case: a dotted key, or an axis of the sweep."""
    return all(_has(group.settings, key, value) for key, value in case.items())


def _has(settings: Settings, key: str, value: Any) -> bool:
    """Return whether a setting has a value; null if there is neither the setting nor a section of its name."""
    if value is None and key not in settings:
        return not any(one.startswith(f"{key}.") for one in settings)
    return same_value(settings.get(key, MISSING), value)


def published_tables(tables: Sequence[PublishedTable], groups: Sequence[RunGroup]) -> list[ReportTable]:
    """Return a table for each source: the paper's figures, the runs' own, and the differences.

    A table that several sweeps name, because they are parts of one, occurs once.
    """
    distinct = [table for index, table in enumerate(tables) if table not in tables[:index]]
    return [_beside(table, groups, f"published-{number}") for number, table in enumerate(distinct, 1)]


def _beside(table: PublishedTable, groups: Sequence[RunGroup], name: str) -> ReportTable:
    names = list(dict.fromkeys(score for figure in table.figures for score in figure.scores))
    columns = (Column("case", "case"), Column("group", "group"), Column("runs", "runs", "count"),
               *(column for score in names for column in _columns(score)))  # fmt: skip
    baselines = [run for group in groups for run in group.runs if table.baseline and matches(group, table.baseline)]
    rows = [_row(figure, group, names, baselines) for figure in table.figures for group in _matching(figure, groups)]
    meaning = "Published figures beside ours: mean \N{PLUS-MINUS SIGN} sample standard deviation over our runs."
    text = " ".join([meaning, table.note, *_find_problems(table, groups, baselines)]).strip()
    return ReportTable(name, f"Published: {table.source}", text, columns, tuple(rows))


def _find_problems(
    table: PublishedTable, groups: Sequence[RunGroup], baselines: Sequence[RecordedRun]
) -> Iterator[str]:
    """Yield a sentence for each key and score that no run has, and for each percentage in the place of a share."""
    known = {key for group in groups for key in group.settings}
    asked = {key for figure in table.figures for key, value in figure.case.items()
             if key not in known and not (value is None and is_key(key, Experiment))}  # fmt: skip
    yield from (f"No run has the setting '{key}': check its spelling." for key in sorted(asked))
    compared: dict[str, list[float | None]] = {}
    for figure in table.figures:
        runs = [run for group in groups if matches(group, figure.case) for run in group.runs]
        for score in figure.scores if runs else ():
            compared.setdefault(score, []).extend(_own_figure(run, score, baselines) for run in runs)
    for score, values in compared.items():
        if all(value is None for value in values):
            yield f"No run has the score '{score}': it is misspelt, or these runs do not measure it."
    yield from (f"{problem[0].upper()}{problem[1:]}." for problem in _find_percentages(table))


def _matching(figure: PublishedFigure, groups: Sequence[RunGroup]) -> Sequence[RunGroup | None]:
    """Return the groups of a figure; None stands for none, so that the figure has a row."""
    return [group for group in groups if matches(group, figure.case)] or [None]


def _own_figure(run: RecordedRun, name: str, baselines: Sequence[RecordedRun]) -> float | None:
    return gain_of(run, name[len(GAIN) :], baselines) if name.startswith(GAIN) else figure_of(run, name)


def _kind_of(score: str) -> CellKind:
    early = _EARLY.fullmatch(score)
    plain = (early["score"] if early else score).removeprefix(GAIN).removeprefix("best_").removeprefix(_LATE)
    quantity = QUANTITIES.get(plain)
    share = plain in ("client_accuracy", "waste_rate") or plain.startswith(_LEVELS)
    size = plain.endswith("memory_peak")
    kind = quantity.unit if quantity else "share" if share else "bytes" if size else "number"
    return _kind_of_difference(kind) if score.startswith(GAIN) else kind


def _kind_of_difference(kind: CellKind) -> CellKind:
    return "points" if kind == "share" else kind


def _late_of(score: str) -> str | None:
    """Return the mean over the last rounds that stands beside a best score or its gain; None for other scores."""
    gain, best, plain = score.rpartition("best_")
    return f"{gain}{_LATE}{plain}" if best and gain in ("", GAIN) and plain in QUANTITIES else None


def _columns(score: str) -> tuple[Column, ...]:
    kind, early = _kind_of(score), _EARLY.fullmatch(score)
    heading = (f"{early['score']} after {early['percent']} % of the rounds" if early else score).replace("_", " ")
    return (
        Column(f"{score}_published", f"{heading}, published", kind),
        Column(score, f"{heading}, ours", kind),
        Column(f"{score}_difference", "ours - published", _kind_of_difference(kind)),
        *(Column(late, f"{late}, ours".replace("_", " "), kind) for late in [_late_of(score)] if late),
    )


def _over_runs(score: str, group: RunGroup | None, baselines: Sequence[RecordedRun]) -> MeanDeviation | None:
    return mean_deviation(_own_figure(run, score, baselines) for run in group.runs) if group else None


def _row(
    figure: PublishedFigure, group: RunGroup | None, names: Sequence[str], baselines: Sequence[RecordedRun]
) -> tuple[Cell, ...]:
    case = ", ".join(str(value) for value in figure.case.values())
    cells = list[Cell]()
    for score in names:
        published = figure.scores.get(score)
        ours, late = _over_runs(score, group, baselines), _late_of(score)
        cells += [published, ours, None if ours is None or published is None else ours.mean - published]
        cells += [_over_runs(late, group, baselines)] if late else []
    return (case, group.name if group else "no run", len(group.runs) if group else 0, *cells)
