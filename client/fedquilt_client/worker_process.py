"""One training process as its agent sees it: started by this process, or as a fork of a warm one."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Final

from fedquilt_common.process.forked import FORK_SERVER, WORKER_NAME, ForkedProcess
from fedquilt_common.training_jobs import worker_command, worker_environment

log = logging.getLogger(__name__)
WRITER: Final = "training-process-writer"
"""Name of the thread that writes to a training process."""
LONG_LINE: Final = 16 * 1024
"""Characters from which on a line may not fit into a pipe, beside others that wait in it."""


class WorkerProcess:
    """A training process and the pipes to it. ``start_worker`` makes one.

    Args:
        process: the process.
        stdin: receives jobs, as text.
        stdout: has its events, as text; it must not raise if the last character is cut.
    """

    def __init__(self, process: subprocess.Popen[str] | ForkedProcess, stdin: IO[str], stdout: IO[str]) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._started = time.monotonic()
        self._unwritten: queue.SimpleQueue[str | None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None until a fork server has answered."""
        if isinstance(self._process, ForkedProcess):
            self._process.poll()
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative if a signal has ended the process; None before ``wait``."""
        return self._process.returncode

    @property
    def refusal(self) -> str:
        """Why a fork server did not start the process; empty if it runs, or has run."""
        return self._process.refusal if isinstance(self._process, ForkedProcess) else ""

    def is_late(self, since: float) -> bool:
        """Whether a fork server was asked for the process before a monotonic time, and has not answered."""
        return self.pid is None and self._started < since

    def write(self, line: str) -> None:
        """Write a line to the process without waiting for it; if it has died, ``lines`` ends.

        A pipe holds 64 KiB, and a process that starts does not read yet. So from the first long line on, such as a job
        with many sub-models, a thread writes.
        """
        if self._unwritten is None and len(line) < LONG_LINE:
            self._write_now(line)
            return
        if self._unwritten is None:
            self._unwritten = queue.SimpleQueue()
            threading.Thread(target=self._write_all, args=(self._unwritten,), name=WRITER, daemon=True).start()
        self._unwritten.put(line)

    def _write_all(self, lines: queue.SimpleQueue[str | None]) -> None:
        while (line := lines.get()) is not None:
            self._write_now(line)
        self._close_now()

    def _write_now(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line + "\n")
            self._stdin.flush()

    def lines(self) -> Iterator[str]:
        """Yield the whole lines that the process writes until its end, which may cut the last one."""
        with self._stdout as lines:
            yield from (line for line in lines if line.endswith("\n"))

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._process.wait()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close the pipe to a process that has ended."""
        if self._unwritten is None:
            self._close_now()
        else:
            self._unwritten.put(None)  # only the thread that writes may close what it writes to

    def _close_now(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()


def start_worker(threads: int, *, forked: bool = True) -> WorkerProcess:
    """Start a training process: as a fork if ``simulate`` has named a fork server, else as a plain child.

    Args:
        threads: threads of one operation.
        forked: False starts a plain child in any case.
    """
    address = os.environ.get(FORK_SERVER, "")
    if forked and address:
        try:
            return _fork(address, threads)
        except OSError as error:
            log.warning("no fork server at %s: %s; starting a training process of its own", address, error)
    process = subprocess.Popen(  # noqa: S603 - our own module
        worker_command(threads),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env=worker_environment(threads),
    )
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    return WorkerProcess(process, process.stdin, process.stdout)


def _fork(address: str, threads: int) -> WorkerProcess:
    its_input, ours = os.pipe()
    theirs, its_output = os.pipe()
    pipes = os.fdopen(ours, "w"), os.fdopen(theirs, errors="replace")
    try:
        descriptors = its_input, its_output, sys.stderr.fileno()
        process = ForkedProcess(
            address, worker_command(threads), descriptors, worker_environment(threads), f"{WORKER_NAME}{os.getpid()}"
        )
    except OSError:
        for pipe in pipes:
            pipe.close()
        raise
    finally:
        os.close(its_input)
        os.close(its_output)
    return WorkerProcess(process, *pipes)
