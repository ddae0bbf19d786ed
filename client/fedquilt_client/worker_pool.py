"""The training processes of one agent: started for the first job, then reused for later jobs."""

from __future__ import annotations

import collections
import functools
import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_client.capacity import oom_kills
from fedquilt_client.energy import EnergyMeter
from fedquilt_client.store import discard_drafts
from fedquilt_client.worker_process import WorkerProcess, start_worker
from fedquilt_common.experiment.agent_config import IDLE_SECONDS
from fedquilt_common.process.exits import describe_exit
from fedquilt_common.training_jobs import Job
from fedquilt_common.worker_lines import (
    CancelledLine,
    CancelLine,
    DamagedLine,
    DoneLine,
    EnergyLine,
    FailedLine,
    LastLine,
    MemoryLine,
    ProgressLine,
    TrainedLine,
    TrainingLine,
    parse_process_line,
)

log = logging.getLogger(__name__)

CANCEL_SECONDS: Final = 5.0
"""How long a worker may take to abort a cancelled job before it is killed."""
START_SECONDS: Final = 300.0
"""How long a fork server may take to answer before the agent starts its processes itself. A server that competes with
a hundred processes takes minutes, and more processes that load torch would delay it further."""
ATTEMPTS: Final = 3
"""Limit of starts of one job whose process dies."""
KILLS_SECONDS: Final = 1.0
"""Time between two readings of the system's counters when jobs start: small jobs must not wait for them."""
DISK_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before a job starts again whose files could not be read or written."""


@dataclass(frozen=True)
class JobProgress:
    """How far a job is, from 0 to 1."""

    job: Job
    value: float


@dataclass(frozen=True)
class JobFinished:
    """A job is done; its drafts are on disk.

    Attributes:
        result: what the training process reports.
        seconds: time that the training process has taken; None for its first job of a run, which also loads its data.
    """

    job: Job
    result: DoneLine
    seconds: float | None = None


@dataclass(frozen=True)
class JobRestarted:
    """A job begins again, because its process died; the reason is a text for people."""

    job: Job
    reason: str


@dataclass(frozen=True)
class JobFailed:
    """A job cannot be done; the reason is a text for the log and the page.

    Attributes:
        declined: the client does no task of the run any more.
    """

    job: Job
    reason: str
    declined: bool = False


@dataclass(frozen=True)
class JobOutOfMemory:
    """A job ran out of memory; before, it announced that it needs ``need`` bytes."""

    job: Job
    need: int


@dataclass(frozen=True)
class JobInputDamaged:
    """A job was not begun: a patch or a private memory at ``path`` does not have its digest."""

    job: Job
    path: Path


JobEvent = JobProgress | JobFinished | JobRestarted | JobFailed | JobOutOfMemory | JobInputDamaged
Post = Callable[[Callable[[], None]], None]
"""Runs a callable in the agent's thread."""


@dataclass
class _WorkerSlot:
    process: WorkerProcess | None = None
    job: Job | None = None
    leaving_since: float | None = None
    idle_since: float = 0.0
    need: int = 0
    kills_before: int = 0
    began: float = 0.0
    loaded: Path | None = None
    """The run of the last job, whose data and model the process holds."""

    def write(self, line: str) -> None:
        if self.process is not None:
            self.process.write(line)


class WorkerPool:
    """Runs jobs on ``workers`` processes with ``threads`` threads each.

    Reader threads only post to the agent's thread. All other code runs in the agent's thread, so it needs no locks.

    Args:
        post: runs a callable in the agent's thread.
        on_event: receives the progress and the outcome of each job.
        meter: counts the energy of the jobs; None: it is unknown.
        idle: seconds after which a process without a job is ended.
        oom_kills: returns the number of processes that the system has killed because it was out of memory.
    """

    def __init__(
        self,
        workers: int,
        threads: int,
        post: Post,
        on_event: Callable[[JobEvent], None],
        meter: EnergyMeter | None = None,
        idle: float = IDLE_SECONDS,
        oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        self._oom_kills = oom_kills
        self._idle = idle
        self._forked = True
        self._kills_at, self._kills = -math.inf, 0
        self._meter = meter
        self._slots = [_WorkerSlot() for _ in range(workers)]
        self._threads = threads
        self._post = post
        self._on_event = on_event
        self._waiting: collections.deque[Job] = collections.deque()
        self._pausing: list[tuple[float, Job]] = []
        self._attempts: collections.Counter[int] = collections.Counter()
        self._disk_failures: collections.Counter[int] = collections.Counter()

    @property
    def jobs(self) -> list[Job]:
        """The jobs that run or wait, without cancelled ones."""
        running = [slot.job for slot in self._slots if slot.job and slot.leaving_since is None]
        return [*running, *self._waiting, *(job for _, job in self._pausing)]

    @property
    def processes(self) -> list[int]:
        """The ids of the training processes."""
        return [pid for slot in self._slots if slot.process is not None and (pid := slot.process.pid) is not None]

    def submit(self, job: Job) -> None:
        """Start a job as soon as a process is free."""
        self._waiting.append(job)
        self._feed()

    def cancel(self, unwanted: Callable[[Job], bool]) -> None:
        """Cancel jobs. The worker of a running job is asked to abort it, and is reused for the next job."""
        self._waiting = collections.deque(job for job in self._waiting if not unwanted(job))
        self._pausing = [(due, job) for due, job in self._pausing if not unwanted(job)]
        for slot in self._slots:
            if slot.job is not None and slot.leaving_since is None and unwanted(slot.job):
                slot.leaving_since = time.monotonic()
                slot.write(CancelLine(cancel=slot.job.number).model_dump_json())

    def repair(self) -> None:
        """End workers that do not answer or have nothing to do, and start jobs whose pause is over."""
        now = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.leaving_since is not None and now - slot.leaving_since >= CANCEL_SECONDS:
                self._kill(slot)
                self._discard_job(slot)
            elif slot.process is not None and slot.job is None and now - slot.idle_since >= self._idle:
                self._kill(slot)  # it holds some 200 MB for torch
            elif slot.process is not None and slot.process.is_late(now - START_SECONDS):
                slot.process.kill()
                self._take_exit(number, slot.process)
        self._end_pauses(now)
        self._feed()

    def _end_pauses(self, now: float) -> None:
        self._waiting.extend(job for due, job in self._pausing if due <= now)
        self._pausing = [(due, job) for due, job in self._pausing if due > now]

    def close(self) -> None:
        """Kill all processes."""
        self._waiting.clear()
        self._pausing.clear()
        for slot in self._slots:
            self._free(slot)
            self._kill(slot)

    def _free(self, slot: _WorkerSlot) -> None:
        """Take the job off a process."""
        if slot.job is not None and self._meter is not None:
            self._meter.end(slot.job.number)
        slot.job = slot.leaving_since = None
        slot.idle_since = time.monotonic()

    def _discard_job(self, slot: _WorkerSlot) -> None:
        """Take the job off a process that has not finished it, and delete what it wrote."""
        if slot.job is not None:
            discard_drafts(slot.job)
        self._free(slot)

    # -- output and exit of a process, in the agent's thread -----------------------------------

    def _take_line(self, number: int, process: WorkerProcess, line: str) -> None:
        """Handle a line of a process; ignore one that concerns no current job."""
        slot = self._slots[number]
        if slot.process is not process:
            return  # the last line of a killed process may be cut
        message = parse_process_line(line)
        if slot.job is None or message.number != slot.job.number:
            return
        match message:
            case TrainingLine():
                slot.need = message.need
            case TrainedLine():
                joules = self._meter.share(slot.job.number) if self._meter is not None else None
                slot.write(EnergyLine(energy=slot.job.number, joules=joules).model_dump_json())
            case ProgressLine():
                if slot.leaving_since is None:
                    self._on_event(JobProgress(slot.job, message.value))
            case _:
                self._end_job(slot, slot.job, message)

    def _end_job(self, slot: _WorkerSlot, job: Job, last: LastLine) -> None:
        cancelled, need = slot.leaving_since is not None, slot.need
        seconds = time.monotonic() - slot.began if slot.loaded == job.run_file else None
        slot.loaded = job.run_file
        if isinstance(last, DoneLine) and not cancelled:
            self._free(slot)
        else:
            self._discard_job(slot)
        waits = False
        if isinstance(last, FailedLine) and last.cause == "disk" and not cancelled:
            waits = self._pause(job, last.reason)
        self._feed()
        if not (cancelled or waits):
            self._on_event(_outcome(job, last, need, seconds))

    def _pause(self, job: Job, reason: str) -> bool:
        """Start a job again later, because the disk may work by then; returns False if it has failed too often."""
        failures = self._disk_failures[job.number]
        if failures >= len(DISK_PAUSES):
            return False
        pause = DISK_PAUSES[failures]
        log.warning("client %d, round %d: %s; trying again in %g s", job.client, job.round, reason, pause)
        self._disk_failures[job.number] += 1
        self._pausing.append((time.monotonic() + pause, job))
        return True

    def _take_exit(self, number: int, process: WorkerProcess) -> None:
        """Handle the end of a process: retry its job, or report that it failed."""
        slot = self._slots[number]
        if slot.process is not process:
            return
        process.close()
        job = slot.job if slot.leaving_since is None else None
        self._discard_job(slot)
        slot.process = None
        if process.refusal:
            self._start_plainly(process.refusal, job)
            job = None
        event = self._event_of_exit(slot, process, job) if job is not None else None
        self._feed()
        if event is not None:
            self._on_event(event)

    def _start_plainly(self, refusal: str, job: Job | None) -> None:
        """Fork no process from now on, and do the job of one that was refused."""
        log.warning("%s; starting training processes of this agent's own", refusal)
        self._forked = False
        if job is not None:
            self._waiting.appendleft(job)

    def _event_of_exit(self, slot: _WorkerSlot, process: WorkerProcess, job: Job) -> JobEvent:
        if slot.need and self._ran_out_of_memory(slot, process):
            return JobOutOfMemory(job, slot.need)
        self._attempts[job.number] += 1
        how = describe_exit(process.returncode or 0)
        if self._attempts[job.number] < ATTEMPTS:
            self._waiting.appendleft(job)
            return JobRestarted(job, f"the training process {how}; starting it again")
        return JobFailed(job, f"the training process died {ATTEMPTS} times; the last one {how}")

    def _ran_out_of_memory(self, slot: _WorkerSlot, process: WorkerProcess) -> bool:
        """Whether the system killed the process because it was out of memory: the system counts such kills."""
        return process.returncode == -signal.SIGKILL and self._oom_kills() > slot.kills_before

    def _feed(self) -> None:
        for number, slot in enumerate(self._slots):
            if slot.job is None and self._waiting:
                slot.job = self._waiting.popleft()
                self._start(number, slot, slot.job)
        if self._attempts or self._disk_failures:
            self._forget_failures_of_others({job.number for job in self.jobs})

    def _forget_failures_of_others(self, numbers: set[int]) -> None:
        for counts in (self._attempts, self._disk_failures):
            for number in counts.keys() - numbers:
                del counts[number]

    def _start(self, number: int, slot: _WorkerSlot, job: Job) -> None:
        if slot.process is None:
            slot.process, slot.loaded = self._spawn(number), None
        slot.need, slot.kills_before, slot.began = 0, self._count_kills(), time.monotonic()
        if self._meter is not None:
            watts = self._meter.begin(job.number)
            job = job.model_copy(update={"metered": self._meter.may_know, "watts": watts})
        slot.write(job.model_dump_json())

    def _count_kills(self) -> int:
        """Return how many processes the system has killed; the number may be up to a second old."""
        now = time.monotonic()
        if now >= self._kills_at + KILLS_SECONDS:
            self._kills_at, self._kills = now, self._oom_kills()
        return self._kills

    def _spawn(self, number: int) -> WorkerProcess:
        process = start_worker(self._threads, forked=self._forked)
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return process

    def _listen(self, number: int, process: WorkerProcess) -> None:
        for line in process.lines():
            self._post(functools.partial(self._take_line, number, process, line))
        process.wait()
        self._post(functools.partial(self._take_exit, number, process))

    def _kill(self, slot: _WorkerSlot) -> None:
        process, slot.process = slot.process, None
        if process is not None:
            process.kill()


def _outcome(job: Job, last: LastLine, need: int, seconds: float | None) -> JobEvent:
    """Return the event for the last line about a job that was not cancelled."""
    match last:
        case DoneLine():
            return JobFinished(job, last, seconds)
        case MemoryLine():
            return JobOutOfMemory(job, need) if need else JobFailed(job, "out of memory")
        case DamagedLine():
            return JobInputDamaged(job, Path(last.path))
        case FailedLine():
            return JobFailed(job, last.reason, last.cause == "declined")
        case CancelledLine():
            return JobFailed(job, "it was cancelled")
