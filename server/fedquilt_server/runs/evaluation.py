"""Evaluates a finished round's state: at once, or in a thread while boards work on the next round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

EvaluationCall = Callable[[], Mapping[str, float]]
"""Returns the scores of a state, by name."""


@dataclass(frozen=True)
class TimedScores:
    """Scores by name, and the seconds that the evaluation took."""

    scores: Mapping[str, float]
    seconds: float


def evaluate(call: EvaluationCall) -> TimedScores:
    """Call an evaluation and measure its time."""
    started = time.perf_counter()
    scores = call()
    return TimedScores(scores, time.perf_counter() - started)


class OverlappedEvaluation:
    """At most one evaluation at a time, in a thread that exists from the first one on."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "evaluation")
        self._running: Future[TimedScores] | None = None

    def start(self, call: EvaluationCall) -> None:
        """Start an evaluation; the result of the one before must have been fetched with ``take``."""
        assert self._running is None  # noqa: S101 - the driver takes it before a round closes
        self._running = self._threads.submit(evaluate, call)

    def take(self, *, wait: bool) -> TimedScores | None:
        """Return what the evaluation has found, once.

        Args:
            wait: wait for its end; otherwise None is returned while it runs.

        Returns:
            None if there is no evaluation.
        """
        if (running := self._running) is None or not (wait or running.done()):
            return None
        self._running = None
        return running.result()
