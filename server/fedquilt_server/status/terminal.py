"""Terminal output: live progress during a run, and a table of the rounds at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from fedquilt_server.status.console import ERROR_CONSOLE, STANDARD_ERROR, print_message, print_whole
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.units import traffic
from fedquilt_server.status.waiting import describe_waiting

CONNECT_SECONDS: Final = 5.0
"""Seconds without a change after which the terminal names the clients that have not connected."""
REPLY_SECONDS: Final = 60.0
"""Seconds without a change after which the terminal names the clients that have not replied, once per exchange."""
UPDATE_SECONDS: Final = 0.5
_ENDS: Final = {"finished": "All rounds are done", "failed": "The run has failed"}


class ProgressDisplay:
    """Live progress on standard error: a progress bar in a terminal, otherwise one line per round.

    Args:
        page_url: address of the status page; empty without one.
        rounds: number of rounds of the run.
        linger: seconds for which the page stays after the run.
    """

    def __init__(self, page_url: str, rounds: int, linger: float) -> None:
        self._page_url = page_url
        self._end_message = f"The page stays for {linger:.0f} s; press Ctrl-C to leave now." if linger else ""
        self._rounds_shown = 0
        self._last_rejection = 0.0
        self._wait_reporter = WaitReporter()
        self._live = STANDARD_ERROR.isatty()
        self._bar = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=ERROR_CONSOLE,
            disable=not self._live,
        )
        self._task = self._bar.add_task("rounds", total=rounds, status="starting")

    def __enter__(self) -> ProgressDisplay:
        if self._page_url:
            print_message(f"Status page: {self._page_url}")
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def skip_rounds(self, rounds: int) -> None:
        """Do not print the first ``rounds`` rounds: they were finished before this program started."""
        self._rounds_shown = rounds

    def finish(self, rounds: Sequence[RoundResult]) -> None:
        """Show the rounds that have not been shown yet, without the message about the page."""
        self._end_message = ""
        self.show(Snapshot(phase="finished", rounds=len(rounds), history=list(rounds)))

    def show(self, snapshot: Snapshot) -> None:
        """Update the display to ``snapshot``."""
        self._print_rejections(snapshot)
        if message := self._wait_reporter.check(snapshot, time.monotonic()):
            print_message(message)
        self._bar.update(self._task, completed=len(snapshot.history), status=_status(snapshot))
        if not self._live:
            for row in snapshot.history[self._rounds_shown :]:
                print_message(f"round {row.round}/{snapshot.rounds}: {_score(row)}, {row.seconds:.2f} s")
        self._rounds_shown = len(snapshot.history)
        if snapshot.phase in _ENDS and self._end_message:
            print_message(f"{_ENDS[snapshot.phase]}. {self._end_message}")
            self._end_message = ""

    def _print_rejections(self, snapshot: Snapshot) -> None:
        """Print why replies were rejected, oldest first, because the round may wait for these clients."""
        unprinted = [rejection for rejection in snapshot.rejections if rejection.at > self._last_rejection]
        for rejection in reversed(unprinted):
            client = "" if rejection.client is None else f", client {rejection.client}"
            print_message(f"round {rejection.round}: {rejection.agent}{client}: {rejection.reason}")
            self._last_rejection = rejection.at

    @contextmanager
    def follow(self, current: Callable[[], Snapshot]) -> Iterator[None]:
        """Show the snapshots that ``current`` returns, from a separate thread, until the ``with`` block ends.

        The last snapshot is shown at the end of the block.
        """
        done = threading.Event()

        def follow() -> None:
            while not done.wait(UPDATE_SECONDS):
                self.show(current())

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.show(current())


class WaitReporter:
    """Decides when to name the clients that a run waits for."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0
        self._reported: object = None

    def check(self, snapshot: Snapshot, now: float) -> str:
        """Return the line to print, or an empty string. ``now``: monotonic seconds."""
        before_round, message = snapshot.phase == "waiting", describe_waiting(snapshot)
        exchange = snapshot.round, snapshot.exchange, before_round
        if self._seen != (exchange, message):
            self._seen, self._since = (exchange, message), now
        # Within an exchange, the clients that have not replied change all the time: report them only once.
        report = exchange, message if before_round else ""
        patience = CONNECT_SECONDS if before_round else REPLY_SECONDS
        if not message or report == self._reported or now - self._since < patience:
            return ""
        self._reported = report
        return message if before_round else f"{message} in round {snapshot.round}"


def _status(snapshot: Snapshot) -> str:
    """The text beside the progress bar."""
    status = f"{snapshot.phase}, {snapshot.replies}/{snapshot.tasks} replies"
    if snapshot.phase == "waiting":
        status = describe_waiting(snapshot) or "waiting"
    return f"{status}, {_score(snapshot.history[-1])}" if snapshot.history else status


def _score(row: RoundResult) -> str:
    if row.has_both:
        return f"accuracy {row.global_accuracy:.4f} global, {row.personal_accuracy:.4f} personal"
    if row.accuracy is not None:
        return f"accuracy {row.accuracy:.4f}"
    return f"R2 {row.r2:.4f}" if row.r2 is not None else "no score"


def print_table(result: Result) -> None:
    """Print the rounds of a run to standard output, and the remark on the data, if any, below them."""
    regression = any(row.r2 is not None for row in result.rounds)
    sub_models = any(row.trained for row in result.rounds)
    both = any(row.has_both for row in result.rounds)
    labels = any(row.label_bytes_up is not None for row in result.rounds)
    title = f"{result.name}: {result.algorithm} on {result.dataset}"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    scores = ["global", "personal"] if both else ["R2" if regression else "accuracy"]
    columns = ["down", "up", *(["labels down", "up"] if labels else [])]
    names = ["round", *scores, "loss", "seconds", *columns, "clients"]
    for name in [*names, *(["levels", "waste"] if sub_models else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rounds:
        table.add_row(
            str(row.round),
            _number(row.r2 if regression else row.accuracy),
            *([_number(row.personal_accuracy)] if both else []),
            _number(row.loss),
            f"{row.seconds:.2f}",
            traffic(row.bytes_down),
            traffic(row.bytes_up),
            *([traffic(row.label_bytes_down or 0), traffic(row.label_bytes_up or 0)] if labels else []),
            str(row.clients),
            *([_number(row.average), _number(row.waste_rate)] if sub_models else []),
        )
    print_whole(table)
    if result.note:
        Console().print(f"Note: {result.note}", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
