"""The training processes of a replay: each does one job at a time."""

from __future__ import annotations

import contextlib
import queue
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import IO, Final, TypeVar, cast

from fedquilt_common.errors import RunFailedError
from fedquilt_common.training_jobs import Job, worker_command, worker_environment
from fedquilt_common.worker_lines import DamagedLine, DoneLine, FailedLine, LastLine, MemoryLine, parse_process_line

POLL_SECONDS: Final = 0.2
T = TypeVar("T")


class ReplayStoppedError(Exception):
    """A person has stopped the replay."""


@dataclass(frozen=True)
class FinishedJob:
    """A job is done and its files are on disk; ``memory`` is the digest of the client's new private memory, if any."""

    job: Job
    memory: str | None


class TrainingProcess:
    """One training process, which is started for the first job."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._ended = False

    def do(self, job: Job) -> FinishedJob:
        """Do a job.

        Raises:
            RunFailedError: the client cannot do its task here, or the process died.
            ReplayStoppedError: the processes were ended.
        """
        if self._ended:
            raise ReplayStoppedError
        process = self._process = self._process or self._start()
        try:
            last = _exchange(process, job)
        except (OSError, ValueError):
            reason = f"the training process ended with exit code {process.wait()}"
            last = FailedLine(number=job.number, reason=reason)
        if isinstance(last, DoneLine):
            return FinishedJob(job, last.memory)
        why = _describe_failure(last)
        raise RunFailedError(f"client {job.client}, round {job.round}: its reply cannot be made again: {why}")

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own module
            worker_command(self._threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=worker_environment(self._threads),
        )

    def kill(self) -> None:
        """End the process at once, and start no other one."""
        self._ended = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the pipes of a process that was killed; nothing may use them any more."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    cast(IO[str], pipe).close()


def _describe_failure(last: LastLine) -> str:
    match last:
        case MemoryLine():
            return "out of memory: try fewer --workers"
        case DamagedLine():
            return f"{last.path} is damaged"
        case FailedLine():
            return last.reason
        case _:
            return last.event


def _exchange(process: subprocess.Popen[str], job: Job) -> LastLine:
    """Send a job; returns the last line about it.

    Raises:
        OSError: the process has ended; or ValueError, if it ended within a line.
    """
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(job.model_dump_json() + "\n")
    process.stdin.flush()
    for line in process.stdout:
        found = parse_process_line(line)
        if found.number == job.number and isinstance(found, LastLine):
            return found
    raise BrokenPipeError


class TrainingPool:
    """Training processes that work side by side.

    Args:
        workers: number of processes.
        threads: threads of each.
        should_stop: called several times a second; once it returns True, the replay stops.
    """

    def __init__(self, workers: int, threads: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._processes = [TrainingProcess(threads) for _ in range(workers)]
        self._should_stop = should_stop
        self._free: queue.SimpleQueue[TrainingProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._free.put(process)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="replay")

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()

    @contextlib.contextmanager
    def process(self) -> Iterator[TrainingProcess]:
        """Take a free process for a while."""
        process = self._free.get()
        try:
            yield process
        finally:
            self._free.put(process)

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Call all tasks side by side; returns their results in order.

        Raises:
            ReplayStoppedError: a person has stopped the replay.
        """
        futures = [self._threads.submit(task) for task in tasks]
        self._await(set(futures))
        return [future.result() for future in futures]

    def _await(self, waiting: set[Future[T]]) -> None:
        while waiting:
            if self._should_stop():
                raise ReplayStoppedError
            done, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                future.result()  # the first error ends the replay
