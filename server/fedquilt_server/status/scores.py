"""Values that the page and the terminal derive from the finished rounds. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from fedquilt_common.learning_tasks.metrics import ACCURACY, LOCAL_METRICS, MAIN_METRICS, SECOND_METRICS, Metric
from fedquilt_common.plurals import plural
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import ENDED, Snapshot
from fedquilt_server.status.units import is_number
from fedquilt_server.status.waiting import ranges

Score = tuple[int, float]
"""The number of a round, and a value measured in it."""


def choose_metric(history: Sequence[RoundResult]) -> Metric:
    """Choose the metric that the run is compared by: the first main metric that a round has; accuracy before that."""
    return next((metric for metric in MAIN_METRICS if _has(history, metric)), ACCURACY)


def second_metrics(history: Sequence[RoundResult]) -> list[Metric]:
    """Return the metrics that are shown besides the main one."""
    return [metric for metric in (*SECOND_METRICS, *LOCAL_METRICS) if _has(history, metric)]


def _has(history: Sequence[RoundResult], metric: Metric) -> bool:
    return any(row.value(metric.name) is not None for row in history)


def best_score(scores: Sequence[Score], metric: Metric) -> Score | None:
    """Return the best score and its round, the earliest of equals; None without any."""
    pick = max if metric.best == "max" else min
    return pick(scores, key=lambda score: score[1], default=None)


def measured_scores(history: Iterable[RoundResult], field: str) -> list[Score]:
    """Return the rounds in which ``field``, a field or a score, was measured and is a finite number."""
    pairs = ((row.round, row.value(field)) for row in history)
    return [(at, value) for at, value in pairs if is_number(value)]


def describe_tested(history: Sequence[RoundResult]) -> str:
    """Return which rounds' scores are of fewer of the clients' test samples than others'; empty if there are none."""
    samples = dict(measured_scores(history, "tested_samples"))
    fewer = [at for at, count in samples.items() if count < max(samples.values())]
    if not fewer:
        return ""
    clients = [int(count) for _, count in measured_scores(history, "tested_clients")]
    named = f"{plural('round', len(fewer))} {ranges(fewer, 40)}"
    return f"{min(clients)} to {max(clients)} clients; the scores of {named} do not compare with those of all of them"


def describe_tests(named: Iterable[tuple[str, Sequence[RoundResult]]]) -> str:
    """Return which model of which runs was tested on which samples, if that differs; empty if it does not.

    Args:
        named: runs, or groups of them, with the rounds of one run.
    """
    found: dict[str, list[str]] = {}
    for name, rows in named:
        if test := _describe_test(rows):
            found.setdefault(test, []).append(name)
    if len(found) < 2:
        return ""
    parts = ", ".join(f"{test} ({'; '.join(names)})" for test, names in found.items())
    return f"The scores are of different tests: {parts}"


def _describe_test(rows: Sequence[RoundResult]) -> str:
    """Return which model the main metric is of, and on which samples; empty without a score."""
    metric = choose_metric(rows)
    last = next((row for row in reversed(rows) if row.value(metric.name) is not None), None)
    if last is None:
        return ""
    if last.value("tested_samples") is None or last.value(f"local_{metric.name}") is not None:
        return "the global model on the test split"
    if last.value(f"global_{metric.name}") is None:
        return "the clients' own models on samples that they keep"
    return "the global model on samples that the clients keep"


def seconds_left(snapshot: Snapshot, seconds: float | None) -> float | None:
    """Estimate the time until the end of the run; None while it waits for boards or for a person.

    Args:
        snapshot: its history and budget show how many rounds are left.
        seconds: median time per round while the coordinator runs; None if it is not known.
    """
    if seconds is None or snapshot.phase in ENDED or snapshot.phase == "waiting":
        return None
    if snapshot.stopping:
        return seconds
    rounds_left = min(snapshot.rounds - snapshot.history[-1].round, *_rounds_in_budget(snapshot), math.inf)
    return seconds * rounds_left if rounds_left > 0 else None


def _rounds_in_budget(snapshot: Snapshot) -> Iterator[int]:
    """Yield after how many more rounds each limit of the budget is used up, if they spend what the earlier ones did."""
    for use in snapshot.budget:
        if use.used > 0:
            yield max(0, math.ceil((use.limit - use.used) * len(snapshot.history) / use.used))
