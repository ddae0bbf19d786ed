"""Groups of runs that differ in their seed only, and what is averaged over each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedquilt_server.library.quantities import (
    COSTS,
    QUANTITIES,
    TargetReached,
    accumulate,
    best_value,
    last_value,
    late_value,
    possible_value,
    reach_target,
)
from fedquilt_server.library.recorded_run import RecordedRun
from fedquilt_server.report.mean_deviation import MeanDeviation, mean_deviation
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.settings import Settings, compared, fingerprint, short_names


@dataclass(frozen=True)
class RunGroup:
    """Finished runs with the same settings, except for the seed and the name.

    Attributes:
        name: short name that tells it from the other groups.
        settings: the settings by dotted key; empty if they are not recorded.
        runs: the runs, in order of their seeds.
    """

    name: str
    settings: Settings
    runs: tuple[RecordedRun, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs, in order; a seed that several runs have occurs several times."""
        return [run.seed for run in self.runs if run.seed is not None]

    def over_runs(self, value: Callable[[Sequence[RoundResult]], float | None]) -> MeanDeviation | None:
        """Return mean and deviation over the runs of a value of their rounds."""
        return mean_deviation(value(run.rounds) for run in self.runs)

    def last(self, score: str) -> MeanDeviation | None:
        """Return the score of the last evaluated round, over the runs."""
        return self.over_runs(lambda rows: last_value(rows, score))

    def best(self, score: str) -> MeanDeviation | None:
        """Return the best score, over the runs."""
        return self.over_runs(lambda rows: best_value(rows, score))

    def late(self, score: str) -> MeanDeviation | None:
        """Return the mean of the score over the last ten evaluated rounds, over the runs."""
        return self.over_runs(lambda rows: late_value(rows, score))

    def total(self, cost: str) -> MeanDeviation | None:
        """Return the sum of a cost over all rounds, over the runs that recorded it in every round."""
        return self.over_runs(lambda rows: sums[-1] if (sums := accumulate(rows, cost)) else None)

    def targets(self, score: str, target: float) -> list[TargetReached]:
        """Return what it cost each run that reached the target."""
        return [found for run in self.runs if (found := reach_target(run.rounds, score, target))]


def group_runs(runs: Sequence[RecordedRun], preferred: Sequence[str] = ()) -> list[RunGroup]:
    """Group finished runs by all settings but the seed and the name, in the order of their first runs.

    A run without recorded settings is grouped with those of the same name, algorithm and data set that have none too.

    Args:
        runs: the runs; those that do not count are left out.
        preferred: settings that the groups are named by first.
    """
    found = defaultdict[str, list[RecordedRun]](list)
    for run in runs:
        if run.counts:
            found[_key(run)].append(run)
    settings = [settings_of(members[0]) for members in found.values()]
    names = _distinct(short_names(settings, preferred))
    return [
        RunGroup(name, one, tuple(sorted(members, key=lambda run: run.seed or 0)))
        for name, one, members in zip(names, settings, found.values(), strict=True)
    ]


def settings_of(run: RecordedRun) -> Settings:
    """Return the settings that tell a run from those of other groups, with the labels of its sweep."""
    if run.settings is not None:
        return {**compared(run.settings), **run.case}
    known = run.result
    return {"algorithm.name": known.algorithm, "data.set": known.dataset, **run.case} if known else run.case


def _key(run: RecordedRun) -> str:
    name = run.result.name if run.settings is None and run.result else None
    return fingerprint({"": name, **settings_of(run)})


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that occur several times."""
    seen, counts = Counter[str](), Counter(names)
    result = []
    for name in names:
        seen[name] += 1
        result.append(f"{name} ({seen[name]})" if counts[name] > 1 else name)
    return result


@dataclass(frozen=True)
class CurvePoint:
    """One evaluated round of a curve: mean cumulative costs, and the score over the runs.

    Attributes:
        round: number of the round.
        costs: mean over the runs of the sums of each cost up to this round; None if a run does not have it.
        score: the score over the runs.
    """

    round: int
    costs: Mapping[str, float | None]
    score: MeanDeviation


def average_curve(group: RunGroup, score: str) -> list[CurvePoint]:
    """Return the learning curve over a group: a point for each round in which every run has the score.

    So each point is a mean over the same runs, and no value is interpolated.
    """
    sums = {cost.name: [accumulate(run.rounds, cost.name) for run in group.runs] for cost in COSTS}
    points = []
    for index in range(min(len(run.rounds) for run in group.runs)):
        rows = [run.rounds[index] for run in group.runs]
        values = [possible_value(row, score) for row in rows]
        over = mean_deviation(values)
        if over and over.n == len(values) and len({row.round for row in rows}) == 1:
            points.append(CurvePoint(rows[0].round, {name: _mean_at(one, index) for name, one in sums.items()}, over))
    return points


def _mean_at(sums: Sequence[Sequence[float] | None], index: int) -> float | None:
    values = [one[index] for one in sums if one is not None]
    over = mean_deviation(values) if len(values) == len(sums) else None
    return over.mean if over else None


STEP: Final = 0.05


def pick_target(groups: Sequence[RunGroup], score: str) -> float | None:
    """Return the best multiple of ``STEP`` that every run reached.

    None if there is none above 0, or if the runs have several data sets: what is early for one is late for another.
    """
    if len({group.settings.get("data.set") for group in groups}) > 1:
        return None
    best = [value for group in groups for run in group.runs if (value := best_value(run.rounds, score)) is not None]
    is_highest_best = QUANTITIES[score].best == "max"
    last = (min if is_highest_best else max)(best, default=0.0)
    if last >= LARGEST_TARGET:
        return None
    steps = math.floor(last / STEP + 1e-9) if is_highest_best else math.ceil(last / STEP - 1e-9)
    return round(steps * STEP, 2) if steps > 0 else None


LARGEST_TARGET: Final = 1e6


def repeated_seeds(group: RunGroup) -> dict[int, list[RecordedRun]]:
    """Return the seeds that several runs of a group have, with these runs."""
    counts = Counter(group.seeds)
    return {seed: [run for run in group.runs if run.seed == seed] for seed, number in counts.items() if number > 1}


def drop_copies(runs: Sequence[RecordedRun]) -> tuple[list[RecordedRun], dict[str, str]]:
    """Leave out runs that are given twice, or whose folder is a copy of another's, perhaps of an unfinished state.

    Returns:
        Of each run the folder that counts and has most rounds; the label of each other folder with that of this one.
    """
    found = defaultdict[Any, list[RecordedRun]](list)
    for run in runs:
        found[run.result.run if run.result and run.result.run else run.folder.resolve()].append(run)
    kept = [max(several, key=lambda run: (run.counts, len(run.rounds))) for several in found.values()]
    several_of = zip(kept, found.values(), strict=True)
    return kept, {run.label: best.label for best, several in several_of for run in several if run is not best}
