"""What a person sees in the terminal: live progress while a run goes on, a table at its end."""

from __future__ import annotations

import sys
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

from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.waiting import describe_waiting

JOINING_SECONDS: Final = 5.0
REPLY_SECONDS: Final = 60.0
"""After so long without a change it is said for whom a run waits, once an exchange."""
LOOK_SECONDS: Final = 0.5
_errors = Console(stderr=True)


def print_message(text: str) -> None:
    """A line for a person, kept out of what a pipe reads."""
    _errors.print(text, highlight=False, markup=False, soft_wrap=True)


class ProgressDisplay:
    """Live progress on standard error: a bar where there is a terminal, a line a round elsewhere."""

    def __init__(self, page_url: str, rounds: int, linger: float) -> None:
        self._page_url = page_url
        self._farewell = f"All rounds are done. The page stays for {linger:.0f} s; Ctrl-C leaves now." if linger else ""
        self._shown = 0
        self._told = 0.0
        self._patience = WaitReporter()
        self._live = sys.stderr.isatty()
        self._bar = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=_errors,
            disable=not self._live,
        )
        self._task = self._bar.add_task("rounds", total=rounds, words="starting")

    def __enter__(self) -> ProgressDisplay:
        if self._page_url:
            print_message(f"Status page: {self._page_url}")
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def skip_rounds(self, rounds: int) -> None:
        """So many were finished before this program started."""
        self._shown = rounds

    def finish(self, rounds: Sequence[RoundResult]) -> None:
        """Show what has come since the last look."""
        self._farewell = ""
        self.show(Snapshot(phase="finished", rounds=len(rounds), history=list(rounds)))

    def show(self, snapshot: Snapshot) -> None:
        """Bring the display up to a snapshot."""
        self._tell_refusals(snapshot)
        if words := self._patience.look(snapshot, time.monotonic()):
            print_message(words)
        words = f"{snapshot.phase}, {snapshot.replies}/{snapshot.tasks} replies"
        if snapshot.phase == "waiting":
            words = describe_waiting(snapshot) or "waiting"
        if snapshot.history:
            words += f", {_score(snapshot.history[-1])}"
        self._bar.update(self._task, completed=len(snapshot.history), words=words)
        if not self._live:
            for row in snapshot.history[self._shown :]:
                print_message(f"round {row.round}/{snapshot.rounds}: {_score(row)}, {row.seconds:.2f} s")
        self._shown = len(snapshot.history)
        if snapshot.phase == "finished" and self._farewell:
            print_message(self._farewell)
            self._farewell = ""

    def _tell_refusals(self, snapshot: Snapshot) -> None:
        """Why replies do not count, since a round may wait for them."""
        news = [refused for refused in snapshot.rejections if refused.at > self._told]
        for one in reversed(news):
            who = "" if one.client is None else f", client {one.client}"
            print_message(f"round {one.round}: {one.agent}{who}: {one.reason}")
            self._told = one.at

    @contextmanager
    def follow(self, current: Callable[[], Snapshot]) -> Iterator[None]:
        """Inside, what ``current`` returns is shown as it changes, from a thread of its own; the last at the end."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(LOOK_SECONDS):
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
    """Knows when a person should be told for whom a run waits."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0
        self._told: object = None

    def look(self, snapshot: Snapshot, now: float) -> str:
        """Words for a person, or nothing."""
        joining, words = snapshot.phase == "waiting", describe_waiting(snapshot)
        where = snapshot.round, snapshot.exchange, joining
        if self._seen != (where, words):
            self._seen, self._since = (where, words), now
        news = where, words if joining else ""  # who has not replied changes all the time
        if not words or news == self._told or now - self._since < (JOINING_SECONDS if joining else REPLY_SECONDS):
            return ""
        self._told = news
        return f"{'The run' if joining else f'round {snapshot.round}'} waits: {words}"


def _score(row: RoundResult) -> str:
    if row.has_both:
        return f"accuracy {row.global_accuracy:.4f} global, {row.personal_accuracy:.4f} personal"
    if row.accuracy is not None:
        return f"accuracy {row.accuracy:.4f}"
    return f"R2 {row.r2:.4f}" if row.r2 is not None else "no score"


def human_bytes(count: float) -> str:
    """``1234567`` -> ``1.2 MB``; powers of 1000, as networks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def print_table(result: Result) -> None:
    """The rounds of a run, on standard output."""
    regression = any(row.r2 is not None for row in result.rounds)
    parted = any(row.trained for row in result.rounds)
    own = any(row.has_both for row in result.rounds)
    labelled = any(row.label_bytes_up is not None for row in result.rounds)
    title = f"{result.name}: {result.algorithm} on {result.dataset}"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    scores = ["global", "personal"] if own else ["R2" if regression else "accuracy"]
    traffic = ["down", "up", *(["labels down", "up"] if labelled else [])]
    names = ["round", *scores, "loss", "seconds", *traffic, "clients"]
    for name in [*names, *(["levels", "waste"] if parted else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rounds:
        table.add_row(
            str(row.round),
            _number(row.r2 if regression else row.accuracy),
            *([_number(row.personal_accuracy)] if own else []),
            _number(row.loss),
            f"{row.seconds:.2f}",
            human_bytes(row.bytes_down),
            human_bytes(row.bytes_up),
            *([human_bytes(row.label_bytes_down or 0), human_bytes(row.label_bytes_up or 0)] if labelled else []),
            str(row.clients),
            *([_number(row.average), _number(row.waste_rate)] if parted else []),
        )
    # rich cuts what does not fit; a terminal that is too narrow wraps lines, but keeps every digit
    console = Console()
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)
    if result.note:
        console.print(f"Note: {result.note}", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
