"""Run a sweep: some runs at once, each in its own process; a run that fails does not stop the others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from fedquilt_common.errors import ExperimentError, FolderInUseError, RunFailedError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.process.cores import available_cores
from fedquilt_server.sweep.manifest import SweepManifest, SweptRun, write_manifest
from fedquilt_server.sweep.plan import SweepPlan, first_states
from fedquilt_server.sweep.progress import SweepProgress
from fedquilt_server.sweep.run_process import STOP_SECONDS, RunEnd, RunHost, RunProcess

POLL_SECONDS: Final = 0.1
REFRESH_SECONDS: Final = 0.5
_STOPPED: Final = "the sweep was interrupted; run the same command again to resume"


def default_jobs(experiments: Sequence[Experiment], cores: int | None = None) -> int:
    """Return how many runs to do at once: as many as have a core for each training process, at least one.

    Args:
        experiments: those of the runs.
        cores: processor cores; None: those that this process may use.
    """
    trainers = max((sum(line.agents * line.workers for line in each.fleet) for each in experiments), default=1)
    return max(1, (cores or available_cores()) // max(1, trainers))


def run_sweep(
    plan: SweepPlan,
    host: RunHost,
    jobs: int,
    progress: SweepProgress,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepManifest:
    """Run what is not finished, and keep ``sweep.json`` up to date.

    Args:
        plan: the sweep.
        host: where its runs take place.
        jobs: the number of runs at once.
        progress: shows the progress.
        should_stop: called several times a second; once it returns True, the runs are stopped so that they can be
            resumed.

    Returns:
        Every run with its status: finished, failed, stopped, or pending if the sweep was stopped before it.

    Raises:
        ExperimentError: ``jobs`` is below 1.
        RunFolderError: the folders do not fit, or cannot be written.
        FolderInUseError: another process sweeps in the folder.
    """
    if jobs < 1:
        raise ExperimentError(f"jobs = {jobs}: a sweep runs 1 experiment or more at once")
    first_states(plan)  # refuses a folder that does not fit before it writes into it
    with report_disk_errors(plan.folder), lock_folder(plan.folder, wait=0, name=".sweep.lock"), progress:
        return _Sweeper(plan, host, first_states(plan), progress).execute(jobs, should_stop)


class _Sweeper:
    """The state of a sweep while it runs."""

    def __init__(self, plan: SweepPlan, host: RunHost, states: Sequence[SweptRun], progress: SweepProgress) -> None:
        self._plan, self._host, self._progress = plan, host, progress
        self._states = list(states)
        self._waiting = deque(index for index, state in enumerate(states) if state.status != "finished")
        self._active: dict[int, RunProcess] = {}
        self._next_refresh = 0.0

    def execute(self, jobs: int, should_stop: Callable[[], bool]) -> SweepManifest:
        """Run the sweep to its end, or until ``should_stop`` returns True."""
        self._progress.begin(self._plan, self._states)
        self._write()
        try:
            while (self._waiting or self._active) and not should_stop():
                self._start(jobs)
                self._settle()
                self._show()
                time.sleep(POLL_SECONDS)
        finally:
            self._stop()
        return self._plan.manifest(self._states)

    def _start(self, jobs: int) -> None:
        while self._waiting and len(self._active) < jobs:
            index = self._waiting.popleft()
            run = self._plan.runs[index]
            try:
                process = RunProcess(run, self._host)
            except (RunFolderError, FolderInUseError, OSError) as error:  # the others may still run
                self._record(index, RunEnd("failed", f"{run.folder} cannot be used: {error}", RunFolderError.exit_code))
                continue
            self._active[index] = process
            self._change(index, status="running", reason="", exit_code=None)
            self._progress.note_start(index, process.page_url)

    def _settle(self) -> None:
        for index, process in list(self._active.items()):
            if (end := process.poll()) is not None:
                self._end(index, end)

    def _end(self, index: int, end: RunEnd) -> None:
        del self._active[index]
        self._record(index, end)

    def _record(self, index: int, end: RunEnd) -> None:
        self._change(index, status=end.status, reason=end.reason, exit_code=end.exit_code)
        self._progress.note_end(index, self._states[index])

    def _show(self) -> None:
        if time.monotonic() >= self._next_refresh:
            self._next_refresh = time.monotonic() + REFRESH_SECONDS
            self._progress.show({index: process.refresh() for index, process in self._active.items()})

    def _stop(self) -> None:
        """Stop the runs that are not finished. A second Ctrl-C kills them at once."""
        if not self._active:
            return
        self._progress.note_stop(len(self._active))
        try:
            for process in self._active.values():
                process.terminate()
            end = time.monotonic() + STOP_SECONDS
            for index, process in list(self._active.items()):
                self._end(index, _stopped(process.wait(end - time.monotonic())))
        except KeyboardInterrupt:
            for index, process in list(self._active.items()):
                self._end(index, RunEnd("stopped", _STOPPED, process.kill()))
            raise

    def _change(self, index: int, **changes: object) -> None:
        self._states[index] = self._states[index].model_copy(update=changes)
        self._write()

    def _write(self) -> None:
        write_manifest(self._plan.folder, self._plan.manifest(self._states))


def _stopped(end: RunEnd) -> RunEnd:
    """Return the end of a run that was stopped; it may have finished, or failed by itself, just before."""
    return end if end.status == "finished" or end.exit_code == RunFailedError.exit_code else replace(
        end, status="stopped", reason=_STOPPED
    )  # fmt: skip
