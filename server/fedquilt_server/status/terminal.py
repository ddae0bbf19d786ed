"""Progress of a run on standard error: one live block in a terminal, otherwise one line per round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fedquilt_server.status.console import ERROR_CONSOLE, STANDARD_ERROR, print_message
from fedquilt_server.status.live_block import LiveBlock
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.scores import choose_metric
from fedquilt_server.status.snapshot import ENDED, Snapshot
from fedquilt_server.status.wait_reporter import WaitReporter

UPDATE_SECONDS: Final = 0.25
STOPPING: Final = "Stopping; press Ctrl-C again to end at once"
_ENDS: Final = {"finished": "The run is finished", "failed": "The run has failed"}


class ProgressDisplay:
    """Live progress on standard error, until the ``with`` block ends.

    Args:
        page_url: address of the status page; empty without one.
        rounds: number of rounds of the run.
        linger: seconds for which the page stays after the run.
        stopping: whether a person has asked the run to stop.
    """

    def __init__(self, page_url: str, rounds: int, linger: float, stopping: Callable[[], bool] = lambda: False) -> None:
        self._page_url = page_url
        self._rounds = rounds
        self._end_message = f"The page stays for {linger:.0f} s; press Ctrl-C to leave now." if linger else ""
        self._stopping = stopping
        self._current: Callable[[], Snapshot] | None = None
        self._block = LiveBlock(rounds) if is_live() else None
        self._lines = ProgressLines()
        self._ended = False
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> ProgressDisplay:
        if self._page_url:
            print_message(f"Status page: {self._page_url}")
        if self._block is not None:
            self._block.start()
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._ticker.join()
        if self._block is not None:
            self._block.stop()

    def stage(self, text: str) -> None:
        """Show what the program does before the run begins."""
        if self._block is not None:
            self._block.stage(text)
        else:
            print_message(text)

    def skip_rounds(self, rounds: int) -> None:
        """Do not print the first ``rounds`` rounds: they were finished before this program started."""
        self._lines.rounds_shown = rounds

    def finish(self, rounds: Sequence[RoundResult]) -> None:
        """Show the rounds that have not been shown yet, without the message about the page, and end the live block."""
        self._end_message = ""
        self.show(Snapshot(phase="finished", rounds=self._rounds, history=list(rounds)))
        if self._block is not None:
            self._block.vanish()

    def print_missing(self, rounds: Sequence[RoundResult]) -> None:
        """Print the lines of finished rounds that are missing; a live block shows the rounds itself."""
        if self._block is None:
            snapshot = Snapshot(phase="failed", rounds=self._rounds, history=list(rounds))
            self._lines.print_progress(snapshot, time.monotonic())

    def show(self, snapshot: Snapshot) -> None:
        """Update the display to ``snapshot``."""
        self._ended = snapshot.phase in ENDED
        self._lines.print_rejections(snapshot)
        if self._block is not None:
            self._block.show(snapshot)
        else:
            self._lines.print_progress(snapshot, time.monotonic())
        if snapshot.phase in _ENDS and self._end_message:
            print_message(f"{_ENDS[snapshot.phase]}. {self._end_message}")
            self._end_message = ""

    @contextmanager
    def follow(self, current: Callable[[], Snapshot]) -> Iterator[None]:
        """Show the snapshots that ``current`` returns until the ``with`` block ends, and the last one at its end."""
        self._current = current
        try:
            yield
        finally:
            self._current = None
            self.show(current())

    def _notify(self, text: str) -> None:
        if self._block is not None:
            self._block.notice(text)
        else:
            print_message(text)

    def _tick(self) -> None:
        """Keep the display current from a thread of its own: the program may be busy for long."""
        stopping = False
        while not self._done.wait(UPDATE_SECONDS):
            if self._stopping() and not (stopping or self._ended):
                stopping = True
                self._notify(STOPPING)
            if (current := self._current) is not None:
                self.show(current())
            if self._block is not None:
                self._block.refresh()


def is_live() -> bool:
    """Whether standard error is a terminal that can show a live block."""
    return STANDARD_ERROR.isatty() and not ERROR_CONSOLE.is_dumb_terminal


class ProgressLines:
    """Lines about a run for a pipe, a file or a dumb terminal.

    Attributes:
        rounds_shown: the rounds that are not printed again.
    """

    def __init__(self) -> None:
        self.rounds_shown = 0
        self._last_rejection = 0.0
        self._warned = False
        self._wait_reporter = WaitReporter()

    def print_progress(self, snapshot: Snapshot, now: float) -> None:
        """Print the rounds that are new, the clients that are awaited for long, and the first warning.

        Args:
            snapshot: the run.
            now: monotonic seconds.
        """
        if message := self._wait_reporter.check(snapshot, now):
            print_message(message)
        for row in snapshot.history[self.rounds_shown :]:
            print_message(describe_round(row, snapshot.rounds))
        self.rounds_shown = max(self.rounds_shown, len(snapshot.history))  # a run that resumes has no history yet
        if snapshot.warning and not self._warned:
            print_message(f"Warning: {snapshot.warning}")
        self._warned = bool(snapshot.warning)

    def print_rejections(self, snapshot: Snapshot) -> None:
        """Print why replies were rejected, oldest first, because the round may wait for these clients."""
        unprinted = [rejection for rejection in snapshot.rejections if rejection.at > self._last_rejection]
        for rejection in reversed(unprinted):
            client = "" if rejection.client is None else f", client {rejection.client}"
            print_message(f"round {rejection.round}: {rejection.agent}{client}: {rejection.reason}")
            self._last_rejection = rejection.at


def describe_round(row: RoundResult, rounds: int) -> str:
    """Return a finished round as one line."""
    return f"round {row.round}/{rounds}: {_score(row)}, {row.running_seconds:.2f} s"


def _score(row: RoundResult) -> str:
    metric = choose_metric([row])
    if row.has_both:
        shared, own = (row.value(f"{model}_{metric.name}") for model in ("global", "personal"))
        return f"{metric.label} {shared:.4f} global, {own:.4f} personal"
    value = row.value(metric.name)
    return "no score" if value is None else f"{metric.label} {value:.4f}"
