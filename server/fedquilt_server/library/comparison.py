"""``fedquilt compare``: runs side by side, and how their experiments differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedquilt_common.errors import ExperimentError
from fedquilt_server.library.quantities import (
    COSTS,
    DIFFERENT_TASKS,
    QUANTITIES,
    SCORES,
    best_value,
    evaluated,
    have_different_tasks,
    is_possible,
    last_value,
    pick_score,
)
from fedquilt_server.library.quantities import reach_target as reach
from fedquilt_server.library.recorded_run import RecordedRun, total_cost
from fedquilt_server.library.scales import CellKind, number_text, scale_of
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.scores import describe_tests
from fedquilt_server.status.settings import MISSING, differing_keys, flatten, show_value
from fedquilt_server.status.units import DASH, time_text


@dataclass(frozen=True)
class ComparedRow:
    """One quantity of all runs.

    Attributes:
        key: its name in JSON.
        heading: its name for people.
        kind: what its values are.
        values: one for each run; None if it is not recorded.
    """

    key: str
    heading: str
    kind: CellKind
    values: tuple[float | str | None, ...]

    def texts(self) -> list[str]:
        """Return heading with unit, and a text for each run."""
        numbers = [value for value in self.values if isinstance(value, int | float)]
        scale = scale_of(self.kind, numbers)
        cells = [number_text(v, scale) if isinstance(v, int | float) else v or DASH for v in self.values]
        return [f"{self.heading} [{scale.symbol}]" if scale.symbol and numbers else self.heading, *cells]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: the runs.
        rows: their results.
        target: the target; None without one.
        differences: dotted setting -> its value in each run, as text.
        notes: what a reader must hold beside the numbers.
    """

    runs: tuple[RecordedRun, ...]
    rows: tuple[ComparedRow, ...]
    target: float | None
    differences: dict[str, list[Any]]
    notes: tuple[str, ...]


def compare_runs(runs: Sequence[RecordedRun], target: float | None) -> Comparison:
    """Compare runs.

    Args:
        runs: at least one run.
        target: the score whose costs are compared; None for no such rows.

    Raises:
        ExperimentError: the target is not a possible score, or the runs have different learning tasks.
    """
    rounds = [run.rounds for run in runs]
    score = pick_score([rows for rows in rounds if rows])
    check_target(rounds, target)
    rows = [*_state_rows(runs), *_score_rows(runs), *_cost_rows(runs), *_target_rows(runs, score, target)]
    notes = [f"{run.label}: {text}" for run in runs for text in (run.reason, *run.notes) if text]
    if have_different_tasks(rounds):
        notes.append(DIFFERENT_TASKS)
    elif tests := describe_tests((run.label, run.rounds) for run in runs):
        notes.append(tests)
    unknown = [run.label for run in runs if run.settings is None]
    notes += [f"{label}: the settings are not recorded, so they are not compared" for label in unknown]
    return Comparison(tuple(runs), tuple(rows), target, _differences(runs), tuple(notes))


def check_target(rounds_of_runs: Sequence[Sequence[RoundResult]], target: float | None) -> None:
    """Check that a target can be reached.

    Raises:
        ExperimentError: it is not a possible value of the score that the runs are compared by, or there is none.
    """
    if target is None:
        return
    if have_different_tasks(rounds_of_runs):
        raise ExperimentError(
            f"--target {target:g}: {DIFFERENT_TASKS[0].lower()}{DIFFERENT_TASKS[1:]}; name fewer runs"
        )
    score = pick_score([rows for rows in rounds_of_runs if rows])
    if not is_possible(target, score or "accuracy"):
        quantity = QUANTITIES[score or "accuracy"]
        limits = "within 0 and 1, such as 0.9" if quantity.unit == "share" else "a finite number"
        raise ExperimentError(f"--target {target:g}: the {quantity.heading} must be {limits}")


def _state_rows(runs: Sequence[RecordedRun]) -> Iterator[ComparedRow]:
    yield ComparedRow("status", "status", "text", tuple(run.status for run in runs))
    yield ComparedRow("started", "started", "text", tuple(time_text(run.started) for run in runs))
    yield ComparedRow("rounds", "rounds", "count", tuple(len(run.rounds) for run in runs))


def _score_rows(runs: Sequence[RecordedRun]) -> Iterator[ComparedRow]:
    for score in SCORES:
        if any(evaluated(run.rounds, score.name) for run in runs):
            last = tuple(last_value(run.rounds, score.name) for run in runs)
            best = tuple(best_value(run.rounds, score.name) for run in runs)
            yield ComparedRow(f"final_{score.name}", f"final {score.heading}", score.unit, last)
            yield ComparedRow(f"best_{score.name}", f"best {score.heading}", score.unit, best)


def _cost_rows(runs: Sequence[RecordedRun]) -> Iterator[ComparedRow]:
    for cost in COSTS:
        values = tuple(total_cost(run, cost.name) for run in runs)
        yield ComparedRow(cost.name, f"total {cost.heading}", cost.unit, values)


def _target_rows(runs: Sequence[RecordedRun], score: str | None, target: float | None) -> Iterator[ComparedRow]:
    if target is None or score is None:
        return
    found = [reach(run.rounds, score, target) for run in runs]
    goal = f"until {QUANTITIES[score].heading} {target:g}"
    rounds = tuple(one.round if one else None for one in found)
    yield ComparedRow("target_rounds", f"rounds {goal}", "count", rounds)
    for cost in COSTS:
        values = tuple(one.costs[cost.name] if one else None for one in found)
        yield ComparedRow(f"target_{cost.name}", f"{cost.heading} {goal}", cost.unit, values)


def _differences(runs: Sequence[RecordedRun]) -> dict[str, list[Any]]:
    known = [run for run in runs if run.settings is not None]
    settings = {run.folder: {k: v for k, v in flatten(run.settings) if v is not None} for run in known}
    keys = differing_keys([settings[run.folder] for run in known])
    return {key: [show_value(settings.get(run.folder, {}).get(key, MISSING)) for run in runs] for key in keys}


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data: numbers in base units, null for what is not recorded."""
    return {
        "runs": [{"folder": str(run.folder), "label": run.label, "seed": run.seed} for run in comparison.runs],
        "target": comparison.target,
        "results": {row.key: list(row.values) for row in comparison.rows},
        "differences": comparison.differences,
        "notes": list(comparison.notes),
    }
