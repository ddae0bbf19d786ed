"""Training processes of one agent: spawned for the first job, kept warm, asked to leave jobs that nobody wants."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fedquilt_client.capacity import oom_kills
from fedquilt_client.worker import Job, JobResult

CANCEL_SECONDS: Final = 5.0
"""How long a worker may take to leave a cancelled job before it is ended."""
ATTEMPTS: Final = 3
"""How often a job is tried when its process dies."""


@dataclass(frozen=True)
class JobProgress:
    """A job is this far, from 0 to 1."""

    job: Job
    value: float


@dataclass(frozen=True)
class JobFinished:
    """A job is done; its drafts are on disk."""

    job: Job
    done: JobResult


@dataclass(frozen=True)
class JobFailed:
    """A job that cannot be done, and why."""

    job: Job
    reason: str


@dataclass(frozen=True)
class JobOutOfMemory:
    """A job that was too much for this board's memory; it had said to ``need`` so many bytes."""

    job: Job
    need: int


@dataclass(frozen=True)
class WorkerExited:
    """A worker process ended; the pool must hear of it in the agent's own thread."""

    slot: int
    process: subprocess.Popen[str]


@dataclass(frozen=True)
class WorkerMessage:
    """A line from a worker."""

    slot: int
    process: subprocess.Popen[str]
    line: str


WorkerEvent = WorkerExited | WorkerMessage
JobEvent = JobProgress | JobFinished | JobFailed | JobOutOfMemory


@dataclass
class _Slot:
    process: subprocess.Popen[str] | None = None
    job: Job | None = None
    leaving_since: float | None = None
    need: int = 0
    kills_before: int = 0


class WorkerPool:
    """Runs jobs on ``workers`` processes.

    Reader threads call ``post`` with raw events; the agent's thread hands those to ``handle``, so that nothing here
    needs a lock.
    """

    def __init__(
        self,
        workers: int,
        threads: int,
        post: Callable[[WorkerEvent], None],
        oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        self._oom_kills = oom_kills
        self._slots = [_Slot() for _ in range(workers)]
        self._threads = threads
        self._post = post
        self._waiting: collections.deque[Job] = collections.deque()
        self._tried: collections.Counter[int] = collections.Counter()

    @property
    def jobs(self) -> list[Job]:
        """Everything running or waiting."""
        return [slot.job for slot in self._slots if slot.job and slot.leaving_since is None] + list(self._waiting)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        self._feed()

    def cancel(self, unwanted: Callable[[Job], bool]) -> None:
        """Forget jobs; the worker of one that is running is asked to leave it, and stays warm for the next."""
        self._waiting = collections.deque(job for job in self._waiting if not unwanted(job))
        for slot in self._slots:
            if slot.job is not None and slot.leaving_since is None and unwanted(slot.job):
                slot.leaving_since = time.monotonic()
                _write(slot, json.dumps({"cancel": slot.job.number}))

    def kill_unresponsive(self) -> None:
        """End workers that have not left a cancelled job in time; to be called now and then."""
        for slot in self._slots:
            if slot.leaving_since is not None and time.monotonic() - slot.leaving_since >= CANCEL_SECONDS:
                slot.job = slot.leaving_since = None
                self._kill(slot)
        self._feed()

    def close(self) -> None:
        """End all processes."""
        self._waiting.clear()
        for slot in self._slots:
            slot.job = slot.leaving_since = None
            self._kill(slot)

    def handle(self, event: WorkerEvent) -> JobEvent | None:
        """What a raw event means; None when it concerns nobody any more."""
        slot = self._slots[event.slot]
        if slot.process is not event.process:
            return None
        if isinstance(event, WorkerExited):
            return self._died(slot, event.process)
        return self._spoke(slot, event.line)

    def _spoke(self, slot: _Slot, line: str) -> JobEvent | None:
        said = json.loads(line)
        job = slot.job
        if job is None or said["number"] != job.number:
            return None
        if said["event"] == "progress":
            return JobProgress(job, float(said["value"])) if slot.leaving_since is None else None
        if said["event"] == "training":
            slot.need = int(said["need"])
            return None
        left, slot.leaving_since = slot.leaving_since is not None, None
        need = slot.need
        slot.job = None
        self._tried.pop(job.number, None)
        self._feed()
        if left:
            return None  # whatever came of it, nobody asks any more
        if said["event"] == "done":
            return JobFinished(job, JobResult.model_validate(said))
        if said["event"] == "memory":
            return JobOutOfMemory(job, need) if need else JobFailed(job, "out of memory")
        return JobFailed(job, str(said["reason"]))

    def _died(self, slot: _Slot, process: subprocess.Popen[str]) -> JobEvent | None:
        _close_stdin(process)
        job = slot.job if slot.leaving_since is None else None
        slot.process = slot.job = slot.leaving_since = None
        lost: JobEvent | None = None
        if job is not None and slot.need and self._was_for_memory(slot, process):
            lost = JobOutOfMemory(job, slot.need)
        elif job is not None:
            self._tried[job.number] += 1
            if self._tried[job.number] < ATTEMPTS:
                self._waiting.appendleft(job)
            else:
                lost = JobFailed(job, f"the training process died {ATTEMPTS} times, last with {_ending(process)}")
        self._feed()
        return lost

    def _was_for_memory(self, slot: _Slot, process: subprocess.Popen[str]) -> bool:
        """A process killed by the system for memory, not by somebody: the system counts those."""
        return process.returncode == -signal.SIGKILL and self._oom_kills() > slot.kills_before

    def _feed(self) -> None:
        for number, slot in enumerate(self._slots):
            if slot.job is None and self._waiting:
                slot.job = self._waiting.popleft()
                self._give(number, slot, slot.job)

    def _give(self, number: int, slot: _Slot, job: Job) -> None:
        if slot.process is None:
            slot.process = self._spawn(number)
        slot.need, slot.kills_before = 0, self._oom_kills()
        _write(slot, job.model_dump_json())

    def _spawn(self, number: int) -> subprocess.Popen[str]:
        threads = str(self._threads)
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "fedquilt_client.worker", threads],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                "OPENBLAS_NUM_THREADS": threads,
            },
        )
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return process

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        with process.stdout as lines:
            for line in lines:
                self._post(WorkerMessage(number, process, line))
        process.wait()
        self._post(WorkerExited(number, process))

    def _kill(self, slot: _Slot) -> None:
        process, slot.process = slot.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        _close_stdin(process)


def _write(slot: _Slot, line: str) -> None:
    if slot.process is not None and slot.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it died: its reader says so
            slot.process.stdin.write(line + "\n")
            slot.process.stdin.flush()


def _close_stdin(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _ending(process: subprocess.Popen[str]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return f"{name} (out of memory?)" if name == "SIGKILL" else name
    return f"exit code {code}"
