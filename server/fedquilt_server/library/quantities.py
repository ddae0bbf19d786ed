"""Quantities that a report shows: their definitions, units and possible values, and how to read them from a round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fedquilt_common.learning_tasks.metrics import (
    LARGEST,
    LOCAL_METRICS,
    LOSS,
    MAIN_METRICS,
    MEAN_LOCAL_METRICS,
    METRICS,
    Metric,
)
from fedquilt_server.status.results import RoundResult

Unit = Literal["share", "number", "seconds", "bytes", "joules"]


@dataclass(frozen=True)
class Quantity:
    """One quantity of a round.

    Attributes:
        name: the field of ``RoundResult``, or the key of its ``scores``.
        heading: short name in tables and charts.
        unit: how its values are written.
        meaning: definition in one sentence.
        low: the least possible value.
        high: the largest possible value.
        best: which of two values is better.
    """

    name: str
    heading: str
    unit: Unit
    meaning: str
    low: float = 0.0
    high: float = 1.0
    best: Literal["max", "min"] = "max"


def _quantity(metric: Metric, name: str = "", heading: str = "", meaning: str = "") -> Quantity:
    """Return a metric as a quantity, under another name for other models."""
    return Quantity(
        name or metric.name, heading or metric.label, metric.unit, meaning or metric.meaning,
        metric.low, metric.high, metric.best,
    )  # fmt: skip


def _of_main(metric: Metric) -> Quantity:
    own = "; of the clients' own models without a global model"
    return _quantity(metric, meaning=f"{metric.meaning}, of the global model on the test samples{own}")


def _of_models(metric: Metric) -> Iterator[Quantity]:
    """Yield a main metric of other models."""
    name, label = metric.name, metric.label
    yield _quantity(metric, f"global_{name}", f"global {label} (G)",
                    f"{label} of the global model on the clients' own test samples")  # fmt: skip
    yield _quantity(metric, f"personal_{name}", f"personal {label} (P)",
                    f"{label} of the clients' own models on all their test samples together")  # fmt: skip
    yield from (_quantity(other) for other in (*LOCAL_METRICS, *MEAN_LOCAL_METRICS) if other.name.endswith(f"_{name}"))
    yield _quantity(metric, f"average_{name}", f"mean {label} of the levels",
                    f"mean of the {label} of the levels' sub-models")  # fmt: skip


def _all_scores() -> Iterator[Quantity]:
    """Yield each main metric, the other metrics of its tasks, and the main metric of other models; then the loss."""
    starts = [*(list(METRICS.values()).index(metric) for metric in MAIN_METRICS), len(METRICS)]
    for start, end in itertools.pairwise(starts):
        main, *others = list(METRICS.values())[start:end]
        yield from (_of_main(main), *map(_quantity, (other for other in others if other is not LOSS)))
        yield from _of_models(main)
    yield _quantity(LOSS)


SCORES: Final = tuple(_all_scores())
COSTS: Final = (
    Quantity("seconds", "time", "seconds", "time of the rounds in which the coordinator ran", 0.0, LARGEST, "min"),
    Quantity("bytes", "bytes", "bytes", "bytes at the coordinator's socket, both ways", 0.0, LARGEST, "min"),
    Quantity("joules", "energy", "joules", "energy of the boards", 0.0, LARGEST, "min"),
)
QUANTITIES: Final = {quantity.name: quantity for quantity in (*SCORES, *COSTS)}
_SUMS: Final = {"bytes": ("bytes_down", "bytes_up")}
"""Measures that are the sum of several fields."""


def read_raw(row: RoundResult, name: str) -> float | None:
    """Return the recorded value of a quantity, even an impossible one; None if the round does not have it.

    A sum with an impossible part is that part.
    """
    if name in _SUMS:
        parts = [float(getattr(row, field)) for field in _SUMS[name]]
        return next((part for part in parts if not is_possible(part, name)), sum(parts))
    number: float | None = row.running_seconds if name == "seconds" else row.value(name)
    return number


def possible_value(row: RoundResult, name: str) -> float | None:
    """Return the value of a quantity; None if the round does not have it, or if it is impossible."""
    value = read_raw(row, name)
    return value if value is not None and is_possible(value, name) else None


def is_possible(value: float, name: str) -> bool:
    """Return whether a value is finite and within the quantity's limits."""
    quantity = QUANTITIES[name]
    return math.isfinite(value) and quantity.low <= value <= quantity.high


def find_impossible(rows: Sequence[RoundResult]) -> Iterator[str]:
    """Yield a sentence for each quantity that has impossible values, with the first one."""
    for name in QUANTITIES:
        wrong = [(row.round, value) for row in rows if (value := read_raw(row, name)) is not None
                 and not is_possible(value, name)]  # fmt: skip
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            yield f"{name} is {wrong[0][1]:g} in round {wrong[0][0]}{more}: not used"


def accumulate(rows: Sequence[RoundResult], name: str) -> list[float] | None:
    """Return the sums of a cost up to each round; None if a round does not have it."""
    total, sums = 0.0, []
    for row in rows:
        value = possible_value(row, name)
        if value is None:
            return None
        total += value
        sums.append(total)
    return sums if sums and math.isfinite(total) else None


def total(rows: Sequence[RoundResult], name: str) -> float | None:
    """Return the sum of a cost over the rounds; None if a round does not have it."""
    sums = accumulate(rows, name)
    return sums[-1] if sums else None


def evaluated(rows: Sequence[RoundResult], name: str) -> list[tuple[int, float]]:
    """Return the index of each round that has the score, and the score."""
    return [(index, value) for index, row in enumerate(rows) if (value := possible_value(row, name)) is not None]


def last_value(rows: Sequence[RoundResult], name: str) -> float | None:
    """Return the score of the last evaluated round; None if it is impossible, because no earlier one replaces it."""
    last = next((row for row in reversed(rows) if read_raw(row, name) is not None), None)
    return possible_value(last, name) if last else None


def best_value(rows: Sequence[RoundResult], name: str) -> float | None:
    """Return the best score over the rounds."""
    found = [value for _, value in evaluated(rows, name)]
    pick = max if QUANTITIES[name].best == "max" else min
    return pick(found) if found else None


LATE_ROUNDS: Final = 10


def late_value(rows: Sequence[RoundResult], name: str) -> float | None:
    """Return the mean of the score over the last ``LATE_ROUNDS`` evaluated rounds, or over all if there are fewer."""
    found = [value for _, value in evaluated(rows, name)][-LATE_ROUNDS:]
    return math.fsum(value / len(found) for value in found) if found else None


@dataclass(frozen=True)
class TargetReached:
    """The costs until a score was reached for the first time.

    Attributes:
        round: number of that round.
        costs: sums up to and with that round by quantity; a cost that is not recorded is None.
    """

    round: int
    costs: dict[str, float | None]


def reach_target(rows: Sequence[RoundResult], name: str, target: float) -> TargetReached | None:
    """Return what it cost until the score was at least as good as ``target``; None if it never was."""
    sign = 1 if QUANTITIES[name].best == "max" else -1
    index = next((index for index, value in evaluated(rows, name) if sign * value >= sign * target), None)
    if index is None:
        return None
    sums = {cost.name: accumulate(rows[: index + 1], cost.name) for cost in COSTS}
    return TargetReached(rows[index].round, {cost: one[-1] if one else None for cost, one in sums.items()})


def pick_score(rounds_of_runs: Sequence[Sequence[RoundResult]]) -> str | None:
    """Return the score that runs are compared by: the first of ``SCORES`` that every run has, or that any has.

    None if no run has one, or if ``have_different_tasks``: their losses have no scale in common.
    """
    if have_different_tasks(rounds_of_runs):
        return None
    for matches in (all, any):
        for quantity in SCORES:
            if rounds_of_runs and matches(evaluated(rows, quantity.name) for rows in rounds_of_runs):
                return quantity.name
    return None


def have_different_tasks(rounds_of_runs: Sequence[Sequence[RoundResult]]) -> bool:
    """Return whether runs have different main metrics, such as accuracy and R2."""
    names = [metric.name for metric in MAIN_METRICS]
    return len({next((name for name in names if evaluated(rows, name)), None) for rows in rounds_of_runs} - {None}) > 1


DIFFERENT_TASKS: Final = (
    "The runs have different learning tasks, so no score compares them: their losses have no scale in common"
)
