"""Tables with a row for each group of runs: scores, costs, and what it cost to reach a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedquilt_common.learning_tasks.metrics import MAIN_METRICS
from fedquilt_server.library.quantities import COSTS, LATE_ROUNDS, QUANTITIES, SCORES, Quantity, evaluated
from fedquilt_server.report.groups import RunGroup, average_curve
from fedquilt_server.report.mean_deviation import mean_deviation
from fedquilt_server.report.table import Cell, Column, ReportTable

GROUP = Column("group", "group")
RUNS = Column("runs", "runs", "count", "number of averaged runs")
SEEDS = Column("seeds", "seeds", "text", "their seeds")
_OVER = (
    "Mean \N{PLUS-MINUS SIGN} sample standard deviation over the runs of a group; a single run has no deviation. "
    "(n = 1): only 1 of the runs has this value."
)


def present_scores(groups: Sequence[RunGroup]) -> list[Quantity]:
    """Return the scores that some run has; without those that equal the main one of their task in every run."""
    found = [score for score in SCORES if any(evaluated(run.rounds, score.name) for g in groups for run in g.runs)]
    return [score for score in found if not _repeats(groups, score.name, _main_of(score.name, found[0].name))]


def _main_of(name: str, usual: str) -> str:
    """Return the main metric that a score such as ``global_r2`` is of, otherwise ``usual``."""
    return next((metric.name for metric in MAIN_METRICS if name.endswith(metric.name)), usual)


def _repeats(groups: Sequence[RunGroup], name: str, other: str) -> bool:
    if name == other:
        return False
    runs = [run.rounds for group in groups for run in group.runs]
    return all(evaluated(rows, name) in ([], evaluated(rows, other)) for rows in runs)


def seeds_text(group: RunGroup) -> str:
    """Return the seeds of a group's runs, such as "1, 2, 3"."""
    return ", ".join(map(str, group.seeds))


def score_table(groups: Sequence[RunGroup]) -> ReportTable:
    """Return the last scores of each group, the means of the last ten and the best ones."""
    scores = present_scores(groups)
    columns = [column for score in scores for column in _score_columns(score)]
    rows = [
        (group.name, len(group.runs), seeds_text(group),
         *(value(score.name) for score in scores for value in (group.last, group.late, group.best)))
        for group in groups
    ]  # fmt: skip
    return ReportTable("scores", "Scores", _OVER, (GROUP, RUNS, SEEDS, *columns), tuple(rows))


def _score_columns(score: Quantity) -> tuple[Column, Column, Column]:
    extreme = "lowest" if score.best == "min" else "highest"
    return (
        Column(f"final_{score.name}", f"final {score.heading}", score.unit, f"{score.meaning}; last evaluated round"),
        Column(
            f"last_{LATE_ROUNDS}_{score.name}",
            f"last {LATE_ROUNDS} {score.heading}",
            score.unit,
            f"mean over the last {LATE_ROUNDS} evaluated rounds, or over all if there are fewer",
        ),
        Column(f"best_{score.name}", f"best {score.heading}", score.unit, f"{extreme} value over the evaluated rounds"),
    )


def cost_table(groups: Sequence[RunGroup]) -> ReportTable:
    """Return what the runs of each group cost."""
    columns = (
        GROUP, RUNS,
        Column("rounds", "rounds", "count", "finished rounds of each run"),
        Column("seconds", "time", "seconds", "sum of the rounds' times in which the coordinator ran"),
        Column("seconds_per_round", "time per round", "seconds", "time / rounds"),
        Column("bytes_down", "sent", "bytes", "from the coordinator's socket, with MQTT framing"),
        Column("bytes_up", "received", "bytes", "at the coordinator's socket, with MQTT framing"),
        Column("joules", "energy", "joules", "energy of the boards; a dash: not recorded in every round"),
        Column("late", "late replies", "number", "replies after their exchange had closed, per run"),
        Column("rejected", "rejections", "number", "bad replies, clients that failed or declined, per run"),
    )  # fmt: skip
    return ReportTable("costs", "Costs", _OVER, columns, tuple(map(_cost_row, groups)))


def _cost_row(group: RunGroup) -> tuple[Cell, ...]:
    def total(field: str) -> Cell:
        return group.over_runs(lambda rows: _sum(getattr(row, field) for row in rows))

    seconds = group.total("seconds")
    per_round = mean_deviation(
        one / len(run.rounds) for run in group.runs if (one := _sum(r.running_seconds for r in run.rounds))
    )
    rounds = "/".join(map(str, dict.fromkeys(len(run.rounds) for run in group.runs)))
    counts = (total("late"), total("rejected"))
    sizes = (total("bytes_down"), total("bytes_up"), group.total("joules"))
    return (group.name, len(group.runs), rounds, seconds, per_round, *sizes, *counts)


def _sum(values: Iterable[float]) -> float | None:
    """Return the sum; None if a value is impossible."""
    found = list(values)
    return float(sum(found)) if all(0 <= value < 1e300 for value in found) else None


def target_table(groups: Sequence[RunGroup], score: str, target: float) -> ReportTable:
    """Return what it cost each group until the score was reached for the first time."""
    quantity = QUANTITIES[score]
    shown = f"{100 * target:g} %" if quantity.unit == "share" else f"{target:g}"
    columns = (
        GROUP, RUNS, Column("reached", "reached", "count", "runs that reached it; the means are over these"),
        Column("rounds", "rounds", "number", "number of the first evaluated round with at least this score"),
        *(Column(cost.name, cost.heading, cost.unit, f"{cost.meaning}, up to and with this round") for cost in COSTS),
    )  # fmt: skip
    rows = []
    for group in groups:
        found = group.targets(score, target)
        costs = [mean_deviation(one.costs[cost.name] for one in found) for cost in COSTS]
        rows.append(
            (group.name, len(group.runs), len(found), mean_deviation(float(one.round) for one in found), *costs)
        )
    title = f"Until {quantity.heading} {shown}"
    meaning = f"{_OVER} Runs that never reached it are not in the means."
    return ReportTable("target", title, meaning, columns, tuple(rows), over="reached")


def curve_table(groups: Sequence[RunGroup], score: str) -> ReportTable:
    """Return the points of the learning curves."""
    quantity = QUANTITIES[score]
    columns = (
        GROUP, Column("round", "round", "count"),
        *(Column(cost.name, cost.heading, cost.unit, f"{cost.meaning} so far, mean over the runs") for cost in COSTS),
        Column(score, quantity.heading, quantity.unit, quantity.meaning),
    )  # fmt: skip
    rows = tuple(
        (group.name, point.round, *(point.costs[cost.name] for cost in COSTS), point.score)
        for group in groups for point in average_curve(group, score)
    )  # fmt: skip
    meaning = "The points of the learning curves: each evaluated round, over all runs of the group."
    return ReportTable("curves", f"Learning curves: {quantity.heading}", meaning, columns, rows)
