"""The training processes of one agent: started for the first job, then reused for later jobs."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedquilt_client.capacity import oom_kills
from fedquilt_client.energy import EnergyMeter
from fedquilt_common.training_jobs import DECLINED, DISK_FAILURE, Job, Spending, worker_command, worker_environment

log = logging.getLogger(__name__)

CANCEL_SECONDS: Final = 5.0
"""How long a worker may take to abort a cancelled job before it is killed."""
ATTEMPTS: Final = 3
"""Limit of starts of one job whose process dies."""
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
        digest: SHA-256 of the reply, which has ``size`` bytes.
        memory: SHA-256 of the client's new private memory; None if the memory is unchanged.
        head: bytes of the reply that are the head of soft labels.
        spent: what the ledger must record before the reply leaves the board; None: nothing.
    """

    job: Job
    digest: str
    size: int
    memory: str | None
    head: int = 0
    spent: Spending | None = None


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
    process: subprocess.Popen[str] | None = None
    job: Job | None = None
    leaving_since: float | None = None
    need: int = 0
    kills_before: int = 0


class WorkerPool:
    """Runs jobs on ``workers`` processes with ``threads`` threads each.

    Reader threads only post to the agent's thread. All other code runs in the agent's thread, so it needs no locks.

    Args:
        post: runs a callable in the agent's thread.
        on_event: receives the progress and the outcome of each job.
        oom_kills: returns the number of processes that the system has killed because it was out of memory.
        meter: counts the energy of the jobs; None: it is unknown.
    """

    def __init__(
        self,
        workers: int,
        threads: int,
        post: Post,
        on_event: Callable[[JobEvent], None],
        oom_kills: Callable[[], int] = oom_kills,
        meter: EnergyMeter | None = None,
    ) -> None:
        self._oom_kills = oom_kills
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
        return [slot.process.pid for slot in self._slots if slot.process is not None]

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
                _write(slot, json.dumps({"cancel": slot.job.number}))

    def kill_unresponsive(self) -> None:
        """Kill workers that have not aborted a cancelled job in time."""
        for slot in self._slots:
            if slot.leaving_since is not None and time.monotonic() - slot.leaving_since >= CANCEL_SECONDS:
                self._free(slot)
                self._kill(slot)
        self._end_pauses(time.monotonic())
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

    # -- output and exit of a process, in the agent's thread -----------------------------------

    def _take_line(self, number: int, process: subprocess.Popen[str], line: str) -> None:
        """Handle a line of a process; ignore one that concerns no current job."""
        slot = self._slots[number]
        if slot.process is not process:
            return  # the last line of a killed process may be cut
        message = json.loads(line)
        if slot.job is None or message["number"] != slot.job.number:
            return
        if message["event"] == "training":
            slot.need = int(message["need"])
        elif message["event"] == "trained":
            joules = self._meter.share(slot.job.number) if self._meter is not None else None
            _write(slot, json.dumps({"energy": slot.job.number, "joules": joules}))
        elif message["event"] != "progress":
            self._end_job(slot, slot.job, message)
        elif slot.leaving_since is None:
            self._on_event(JobProgress(slot.job, float(message["value"])))

    def _end_job(self, slot: _WorkerSlot, job: Job, message: dict[str, Any]) -> None:
        cancelled, need = slot.leaving_since is not None, slot.need
        self._free(slot)
        waits = not cancelled and message.get("cause") == DISK_FAILURE and self._pause(job, str(message["reason"]))
        self._feed()
        if not (cancelled or waits):
            self._on_event(_outcome(job, message, need))

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

    def _take_exit(self, number: int, process: subprocess.Popen[str]) -> None:
        """Handle the end of a process: retry its job, or report that it failed."""
        slot = self._slots[number]
        if slot.process is not process:
            return
        _close_stdin(process)
        job = slot.job if slot.leaving_since is None else None
        self._free(slot)
        slot.process = None
        event = self._event_of_exit(slot, process, job) if job is not None else None
        self._feed()
        if event is not None:
            self._on_event(event)

    def _event_of_exit(self, slot: _WorkerSlot, process: subprocess.Popen[str], job: Job) -> JobEvent:
        if slot.need and self._ran_out_of_memory(slot, process):
            return JobOutOfMemory(job, slot.need)
        self._attempts[job.number] += 1
        if self._attempts[job.number] < ATTEMPTS:
            self._waiting.appendleft(job)
            return JobRestarted(job, f"the training process died with {_describe_exit(process)}; starting it again")
        return JobFailed(job, f"the training process died {ATTEMPTS} times, last with {_describe_exit(process)}")

    def _ran_out_of_memory(self, slot: _WorkerSlot, process: subprocess.Popen[str]) -> bool:
        """Whether the system killed the process because it was out of memory: the system counts such kills."""
        return process.returncode == -signal.SIGKILL and self._oom_kills() > slot.kills_before

    def _feed(self) -> None:
        for number, slot in enumerate(self._slots):
            if slot.job is None and self._waiting:
                slot.job = self._waiting.popleft()
                self._start(number, slot, slot.job)
        self._forget_failures_of_others({job.number for job in self.jobs})

    def _forget_failures_of_others(self, numbers: set[int]) -> None:
        for counts in (self._attempts, self._disk_failures):
            for number in counts.keys() - numbers:
                del counts[number]

    def _start(self, number: int, slot: _WorkerSlot, job: Job) -> None:
        if slot.process is None:
            slot.process = self._spawn(number)
        slot.need, slot.kills_before = 0, self._oom_kills()
        if self._meter is not None:
            self._meter.begin(job.number)
        _write(slot, job.model_dump_json())

    def _spawn(self, number: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own module
            worker_command(self._threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=worker_environment(self._threads),
        )
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return process

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        with process.stdout as lines:
            for line in lines:
                self._post(functools.partial(self._take_line, number, process, line))
        process.wait()
        self._post(functools.partial(self._take_exit, number, process))

    def _kill(self, slot: _WorkerSlot) -> None:
        process, slot.process = slot.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        _close_stdin(process)


def _outcome(job: Job, message: dict[str, Any], need: int) -> JobEvent:
    """Return the event for the last line about a job."""
    if message["event"] == "done":
        spent = Spending.model_validate(message["spent"]) if message.get("spent") is not None else None
        return JobFinished(job, message["digest"], message["size"], message["memory"], message["head"], spent)
    if message["event"] == "memory":
        return JobOutOfMemory(job, need) if need else JobFailed(job, "out of memory")
    if message["event"] == "damaged":
        return JobInputDamaged(job, Path(message["path"]))
    return JobFailed(job, str(message["reason"]), message.get("cause") == DECLINED)


def _write(slot: _WorkerSlot, line: str) -> None:
    if slot.process is not None and slot.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # the process died: its reader posts the exit
            slot.process.stdin.write(line + "\n")
            slot.process.stdin.flush()


def _close_stdin(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _describe_exit(process: subprocess.Popen[str]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return f"{name} (out of memory?)" if name == "SIGKILL" else name
    return f"exit code {code}"
