"""The state of a run in a few lines that fit a terminal of any width. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.text import Text

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_common.terminal_text import printable
from fedquilt_server.status.problems import worst_problem
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.round_times import measure_times
from fedquilt_server.status.scores import (
    Score,
    best_score,
    choose_metric,
    measured_scores,
    second_metrics,
    seconds_left,
)
from fedquilt_server.status.snapshot import ENDED, Snapshot
from fedquilt_server.status.units import duration, traffic, whole_duration
from fedquilt_server.status.waiting import describe_waiting

LineName = Literal["title", "round", "time", "scores", "waiting", "problem"]
Lines = Mapping[LineName, Text]
IMPORTANCE: Final[tuple[LineName, ...]] = ("round", "problem", "scores", "waiting", "time", "title")
"""The lines that a low terminal shows; the first one is shown last of all."""
LEAST_BAR: Final = 6
LATEST: Final = 100
"""Rounds from whose median the remaining time is estimated."""


@dataclass(frozen=True)
class HistoryDigest:
    """What the lines show of the finished rounds. A long run has thousands of them, so it is not made at each drawing.

    Attributes:
        last: the last round; None before the first one.
        seconds: median seconds of the latest rounds.
        scores: the scores in words, the most important one first.
        traffic: the bytes in words.
    """

    last: RoundResult | None = None
    seconds: float | None = None
    scores: Sequence[str] = ()
    traffic: Sequence[str] = ()

    def follow(self, history: Sequence[RoundResult]) -> HistoryDigest:
        """Return the digest of a history: this one, unless a round has finished."""
        last = history[-1] if history else None
        return self if last is self.last else digest_history(history)


def digest_history(history: Sequence[RoundResult]) -> HistoryDigest:
    """Return the digest of the finished rounds."""
    if not history:
        return HistoryDigest()
    seconds = measure_times(history[-LATEST:]).median
    return HistoryDigest(history[-1], seconds, score_parts(history), _traffic_parts(history))


def run_lines(
    snapshot: Snapshot,
    digest: HistoryDigest,
    now: float,
    elapsed: float | None,
    width: int,
    *,
    ascii_only: bool = False,
) -> Lines:
    """Return the lines by name, in the order in which they are shown; a line without content is left out.

    Args:
        snapshot: the run.
        digest: of the run's finished rounds.
        now: Unix time in seconds.
        elapsed: seconds since the run began; None if not known.
        width: characters of a line.
        ascii_only: whether the terminal shows ASCII characters only.
    """
    problem = worst_problem(snapshot)
    lines: dict[LineName, Text] = {
        "title": fit(f"{snapshot.name}: {snapshot.algorithm} on {snapshot.dataset}" if snapshot.name else "", width),
        "round": round_line(snapshot, width, ascii_only=ascii_only),
        "time": fit(join_fitting(time_parts(snapshot, digest, now, elapsed), width), width),
        "scores": fit(join_fitting(digest.scores, width), width),
        "problem": fit(f"Warning: {problem}" if problem and snapshot.phase != "failed" else problem, width, "yellow"),
        "waiting": fit(_control(snapshot) or describe_waiting(snapshot, width), width),
    }
    return {name: line for name, line in lines.items() if line.plain}


def _control(snapshot: Snapshot) -> str:
    """Return what a person has asked of the run; empty if nobody has."""
    if snapshot.phase in ENDED:
        return ""
    if snapshot.stopping:
        return "Somebody has stopped the run: it ends after this round"
    return "Paused: no further round opens until somebody continues the run" if snapshot.paused else ""


def choose_lines(lines: Lines, height: int) -> list[Text]:
    """Return the most important lines that fit ``height``, in their order; at least one."""
    kept = sorted(lines, key=IMPORTANCE.index)[: max(1, height)]
    return [line for name, line in lines.items() if name in kept]


def fit(text: str, width: int, style: str = "") -> Text:
    """Return one line of at most ``width`` cells without control characters; an ellipsis ends a line that is cut."""
    line = Text(printable(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def join_fitting(parts: Iterable[str], width: int) -> str:
    """Join the first parts that fit ``width`` with commas; the first one is always there."""
    line = ""
    for part in parts:
        longer = f"{line}, {part}" if line else part
        if line and len(longer) > width:
            break
        line = longer
    return line


def round_line(snapshot: Snapshot, width: int, *, ascii_only: bool = False) -> Text:
    """Return the round, a bar of the finished rounds, the phase and the replies. The counts are never cut."""
    finished = _finished_rounds(snapshot)
    current = finished if snapshot.phase in ENDED else max(snapshot.round, 1)
    start, end = f"Round {min(current, snapshot.rounds)}/{snapshot.rounds}", _phase(snapshot)
    end = end.rjust(len(f"evaluating, {snapshot.tasks}/{snapshot.tasks} replies"))
    room = width - len(start) - len(end) - 2
    line = Text(f"{start} ", style="bold", no_wrap=True)
    if room >= LEAST_BAR:
        line.append(make_bar(finished, snapshot.rounds, room, ascii_only=ascii_only)).append(" ")
    line.append(end, style="")
    line.truncate(width, overflow="ellipsis")
    return line


def _finished_rounds(snapshot: Snapshot) -> int:
    if snapshot.history:
        return snapshot.history[-1].round
    return snapshot.rounds if snapshot.phase == "finished" else max(snapshot.round - 1, 0)


def _phase(snapshot: Snapshot) -> str:
    if snapshot.tasks and snapshot.phase not in ("waiting", *ENDED):
        return f"{snapshot.phase}, {snapshot.replies}/{snapshot.wanted} replies"
    return snapshot.phase


def make_bar(done: float, total: float, width: int, *, ascii_only: bool = False) -> Text:
    """Return a bar of ``width`` characters, of which the share ``done / total`` is full."""
    full = round(width * min(max(done / total, 0.0), 1.0)) if total else 0
    glyphs = "#-" if ascii_only else "\N{BOX DRAWINGS HEAVY HORIZONTAL}\N{BOX DRAWINGS LIGHT HORIZONTAL}"
    return Text.assemble((glyphs[0] * full, "not bold cyan"), (glyphs[1] * (width - full), "not bold dim"))


def time_parts(snapshot: Snapshot, digest: HistoryDigest, now: float, elapsed: float | None) -> Sequence[str]:
    """Return the times of the run, the most important one first."""
    a_round = digest.seconds
    left = seconds_left(snapshot, a_round)
    if left is not None and a_round is not None and snapshot.opened_at is not None:
        left -= min(max(now - snapshot.opened_at, 0.0), a_round)
    return [
        *([f"{whole_duration(elapsed)} elapsed"] if elapsed is not None and snapshot.phase not in ENDED else []),
        *([f"about {whole_duration(left)} left"] if left is not None else []),
        *([f"median round {duration(a_round)}"] if a_round is not None else []),
        *(f"budget {use.text}" for use in snapshot.budget),
        *digest.traffic,
    ]


def _traffic_parts(history: Sequence[RoundResult]) -> Sequence[str]:
    down, up = sum(row.bytes_down for row in history), sum(row.bytes_up for row in history)
    return f"{traffic(down)} down", f"{traffic(up)} up"


def score_parts(history: Sequence[RoundResult]) -> Sequence[str]:
    """Return the scores of a run, the most important one first."""
    metric = choose_metric(history)
    main = measured_scores(history, metric.name)
    personal = measured_scores((row for row in history if row.has_both), f"personal_{metric.name}")
    losses = measured_scores(history, "loss")
    return [
        *([_with_best(f"global {metric.label}" if personal else metric.label, main, metric)] if main else []),
        *([_with_best("personal", personal, metric)] if personal else []),
        *(_with_best(other.label, measured_scores(history, other.name), other) for other in second_metrics(history)),
        *([f"loss {show_loss(losses[-1][1])}"] if losses else []),
    ]


def show_loss(value: float) -> str:
    """Format a loss: with a power of ten where four decimals show too much or too little."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def show_score(value: float, metric: Metric) -> str:
    """Format a score: a share with four decimals, another number like a loss."""
    return f"{value:.4f}" if metric.unit == "share" else show_loss(value)


def _with_best(name: str, scores: Sequence[Score], metric: Metric) -> str:
    if not scores:
        return f"{name} not finite"
    latest, best = scores[-1], best_score(scores, metric) or scores[-1]
    note = f" (best {show_score(best[1], metric)} in round {best[0]})" if best[1] != latest[1] else ""
    return f"{name} {show_score(latest[1], metric)}{note}"
