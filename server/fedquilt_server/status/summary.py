"""What a run has given, in a few lines on standard output at its end."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_common.terminal import make_console
from fedquilt_common.terminal_text import printable
from fedquilt_server.status.privacy_text import describe_central, describe_declined, describe_privacy
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.round_times import measure_times
from fedquilt_server.status.run_lines import show_loss, show_score
from fedquilt_server.status.scores import (
    Score,
    best_score,
    choose_metric,
    describe_tested,
    measured_scores,
    second_metrics,
)
from fedquilt_server.status.units import duration, is_number, percent, traffic

LABEL_WIDTH = 11


def print_summary(result: Result, folder: Path, restarts: Mapping[str, int]) -> None:
    """Print the summary of a run to standard output. A narrow terminal wraps its lines and loses no character.

    Args:
        result: the run.
        folder: its folder.
        restarts: how often each process was restarted, as far as this program has counted them.
    """
    console = make_console()
    seed = f", seed {result.seed}"
    print_line(console, f"{result.name}: {result.algorithm} on {result.dataset}{seed}: {result.status}", "bold")
    for name, text in summary_lines(result, folder, restarts):
        print_line(console, f"  {name:<{LABEL_WIDTH}} {text}")
    for warning in result.warnings:
        print_line(console, f"Warning: {warning}", "yellow")
    if result.note:
        print_line(console, f"Note: {result.note}")


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print one line as it is."""
    console.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)


def summary_lines(result: Result, folder: Path, restarts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line."""
    rows = result.rounds
    if result.status == "finished" and result.reason:
        yield "ended", result.reason
    yield from _scores(rows)
    if tested := describe_tested(rows):
        yield "tested by", tested
    if rows:
        yield "rounds", _times(rows)
        yield from _traffic(rows)
        yield "replies", _replies(rows)
    for spent in (describe_privacy(result.privacy), describe_central(rows)):
        if spent:
            yield "privacy", spent
    if declined := describe_declined(result.privacy):
        yield "declined", declined
    if restarted := {name: count for name, count in restarts.items() if count}:
        yield "restarts", ", ".join(f"{name} {count}" for name, count in restarted.items())
    yield "run folder", str(folder)
    if rows:
        yield "more", shlex.join([_program(), "report", str(folder)])


def _program() -> str:
    """Return how to start ``fedquilt`` again: its path, as typed, if no folder of PATH has it."""
    typed = sys.argv[0]
    return typed if shutil.which("fedquilt") is None and Path(typed).name == "fedquilt" else "fedquilt"


def _scores(rows: Sequence[RoundResult]) -> Iterator[tuple[str, str]]:
    metric = choose_metric(rows)
    main = measured_scores(rows, metric.name)
    personal = measured_scores((row for row in rows if row.has_both), f"personal_{metric.name}")
    if main:
        yield "global" if personal else metric.label, _with_best(main, metric)
    if personal:
        yield "personal", _with_best(personal, metric)
    for other in second_metrics(rows):
        if found := measured_scores(rows, other.name):
            yield other.label, _with_best(found, other)
    if averages := [row.average for row in rows if is_number(row.average)]:
        yield "sub-models", f"{averages[-1]:.4f} on average over the levels"
    if losses := measured_scores(rows, "loss"):
        lowest = min(losses, key=_value)
        yield "loss", f"{show_loss(losses[-1][1])} (lowest {show_loss(lowest[1])} in round {lowest[0]})"


def _with_best(scores: Sequence[Score], metric: Metric) -> str:
    best = best_score(scores, metric) or scores[-1]
    return f"{show_score(scores[-1][1], metric)} (best {show_score(best[1], metric)} in round {best[0]})"


def _value(score: Score) -> float:
    return score[1]


def _times(rows: Sequence[RoundResult]) -> str:
    times = measure_times(rows)
    away = f", and {duration(times.away)} without the coordinator" if times.away else ""
    training = f"{percent(times.training_share, 0)} of it training"
    return f"{len(rows)} in {duration(times.total)}, {training} (median round {duration(times.median)}){away}"


def _traffic(rows: Sequence[RoundResult]) -> Iterator[tuple[str, str]]:
    """Yield the bytes at the coordinator's socket, where a broadcast counts once, and those of all clients' labels."""
    yield "traffic", _both_ways(rows, "bytes")
    labels = [row for row in rows if row.label_bytes_up is not None]
    if labels:
        yield "soft labels", f"{_both_ways(labels, 'label_bytes')}, summed over the clients"


def _both_ways(rows: Sequence[RoundResult], name: str) -> str:
    down, up = (traffic(sum(getattr(row, f"{name}_{way}") or 0 for row in rows)) for way in ("down", "up"))
    return f"{down} down, {up} up"


def _replies(rows: Sequence[RoundResult]) -> str:
    names = {"replies": "accepted", "late": "late", "rejected": "rejected", "duplicates": "duplicate"}
    counts = {word: sum(getattr(row, name) for row in rows) for name, word in names.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count or word == "accepted")
