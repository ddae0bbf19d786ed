"""Progress of a sweep on standard error: a live block in a terminal, one line per run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedquilt_common.plurals import counted
from fedquilt_common.terminal_text import printable
from fedquilt_server.runs.begun_mark import read_mark
from fedquilt_server.status.console import ERROR_CONSOLE
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.units import whole_duration
from fedquilt_server.status.wait_reporter import WaitReporter
from fedquilt_server.status.waiting import describe_waiting
from fedquilt_server.sweep.manifest import SweptRun, SweptStatus
from fedquilt_server.sweep.plan import PlannedRun, SweepPlan
from fedquilt_server.sweep.scores import main_scores, read_final

LONGEST_REASON: Final = 200
_BAR_WIDTH: Final = 16
_LONGEST_WAIT: Final = 48


class SweepProgress:
    """Shows how far a sweep is, and when it may end.

    Args:
        enabled: whether to show anything.
        console: where to.
        name_pages: whether to name the status page of each run.
    """

    def __init__(self, *, enabled: bool = True, console: Console = ERROR_CONSOLE, name_pages: bool = False) -> None:
        self._console = console
        self._enabled, self._name_pages = enabled, name_pages
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._waits: dict[int, WaitReporter] = {}
        self._started: dict[int, float] = {}
        self._rounds = SweepRounds([], [])
        self._ended: dict[int, SweptStatus] = {}
        self._stopping = False

    def __enter__(self) -> SweepProgress:
        if self._enabled and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, plan: SweepPlan, states: Sequence[SweptRun]) -> None:
        """Start with the sweep's runs; rounds that are already finished do not count in the estimate of the end."""
        self._plan, self._states = plan, list(states)
        self._ended = {index: state.status for index, state in enumerate(states) if state.status == "finished"}
        done = [
            run.experiment.rounds if state.status == "finished" else _finished_rounds(run)
            for run, state in zip(plan.runs, states, strict=True)
        ]
        self._rounds = SweepRounds([run.experiment.rounds for run in plan.runs], done)
        skipped = f"; {len(self._ended)} finished already" if self._ended else ""
        self._print(f"{plan.name}: {counted(len(states), 'run')} in {plan.folder}{skipped}")

    def note_start(self, index: int, page_url: str) -> None:
        """Note that a run has started."""
        self._started[index], self._waits[index] = time.monotonic(), WaitReporter()
        if self._name_pages:
            self._print(f"{self._states[index].label}: started. Status page: {page_url}")

    def note_end(self, index: int, state: SweptRun) -> None:
        """Print how a run ended."""
        self._rounds.end(index, finished=state.status == "finished")
        if state.status == "stopped" and self._stopping:
            self._print(f"{state.label}: stopped")
            return
        self._ended[index] = state.status
        words = f"{state.status}: {shorten(state.reason)}" if state.status != "finished" else self._finish_words(index)
        self._print(f"[{len(self._ended)}/{len(self._states)}] {state.label}: {words}")

    def note_stop(self, active: int) -> None:
        """Print that the sweep stops its active runs."""
        self._stopping = True
        self._print(f"Stopping {active} run{'s' if active > 1 else ''}; press Ctrl-C again to end at once")

    def show(self, snapshots: Mapping[int, Snapshot | None]) -> None:
        """Show the state of the active runs."""
        for index, snapshot in snapshots.items():
            if snapshot is not None:
                self._rounds.reach(index, len(snapshot.history))
                if message := self._waits[index].check(snapshot, time.monotonic()):
                    self._print(f"{self._states[index].label}: {message}")
        if self._live.is_started:
            self._live.update(self.block(snapshots), refresh=True)

    def _print(self, text: str) -> None:
        if self._enabled:
            self._console.print(printable(text, "\n\t"), highlight=False, markup=False, soft_wrap=True)

    def _finish_words(self, index: int) -> str:
        seconds = time.monotonic() - self._started[index]
        left = [] if self._live.is_started else self._left()  # the live block has it
        return ", ".join([f"finished in {whole_duration(seconds)}", *_last_scores(self._plan.runs[index]), *left])

    def _left(self) -> list[str]:
        seconds = self._rounds.seconds_left()
        return [f"about {whole_duration(seconds)} left"] if seconds else []

    def block(self, snapshots: Mapping[int, Snapshot | None]) -> RenderableType:
        """Return the live block: a bar for the sweep, and a line for each active run."""
        failed = list(self._ended.values()).count("failed")
        failures = [f"{failed} failed"] if failed else []
        words = [f"{len(self._ended)}/{len(self._states)} runs", *failures, *self._left()]
        bar = ProgressBar(total=self._rounds.total, completed=self._rounds.done, width=_BAR_WIDTH)
        head = Table.grid(padding=(0, 1))
        head.add_row(Text(self._plan.name, "bold", overflow="ellipsis", no_wrap=True), bar, ", ".join(words))
        runs = Table.grid(padding=(0, 2), expand=True)
        runs.add_column(no_wrap=True)
        runs.add_column(overflow="ellipsis", no_wrap=True, ratio=1)  # takes what the rounds leave
        for index, snapshot in snapshots.items():
            runs.add_row(Text(f"  {describe_open_round(snapshot)}"), Text(self._states[index].label))
        return Group(head, runs)


class SweepRounds:
    """Counts the finished rounds of all runs, and estimates the time that the rest takes.

    Args:
        totals: the rounds of each run.
        done: those that are finished already; they do not count for the estimate.
    """

    def __init__(self, totals: Sequence[int], done: Sequence[int]) -> None:
        self._totals, self._done = list(totals), list(done)
        self._before = sum(done)
        self._since = time.monotonic()

    @property
    def total(self) -> int:
        """The rounds of all runs, without those that a failed run will not have."""
        return sum(self._totals)

    @property
    def done(self) -> int:
        """The finished rounds of all runs."""
        return sum(self._done)

    def reach(self, index: int, rounds: int) -> None:
        """Note how many rounds of a run are finished."""
        self._done[index] = max(self._done[index], min(rounds, self._totals[index]))

    def end(self, index: int, *, finished: bool) -> None:
        """Note that a run has ended."""
        if finished:
            self._done[index] = self._totals[index]
        else:
            self._totals[index] = self._done[index]

    def seconds_left(self) -> float | None:
        """Return the seconds until all rounds are finished; None before the first round of this process."""
        fresh = self.done - self._before
        return (time.monotonic() - self._since) / fresh * (self.total - self.done) if fresh > 0 else None


def describe_open_round(snapshot: Snapshot | None) -> str:
    """Write where a run is: its round, for whom it waits, or its phase before the first round."""
    if snapshot is None:
        return "starting"
    waiting = describe_waiting(snapshot, _LONGEST_WAIT) if snapshot.phase == "waiting" else ""
    return waiting or f"round {snapshot.round}/{snapshot.rounds}"


def shorten(reason: str) -> str:
    """Return the first line of a reason, cut at a length that a terminal shows."""
    line = reason.partition("\n")[0]
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."


def _finished_rounds(run: PlannedRun) -> int:
    mark = read_mark(run.folder)
    return mark.round if mark is not None else 0


def _last_scores(run: PlannedRun) -> list[str]:
    """Return the run's final scores as text."""
    return [f"{name.replace('_', ' ')} {value:.4f}" for name, value in main_scores(read_final(run.folder)).items()]
