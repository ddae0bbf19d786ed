"""The training process: one job a line on standard input, events a line on standard output, all JSON.

It is spawned by the agent, may be killed at any time, and leaves when the agent is gone.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_client.capacity import free_capacity, read_limit
from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.errors import FedquiltError, SliceError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.durable import sync
from fedquilt_common.process.malloc import TRAINING, keep_freed_memory, return_freed_memory, trim_heap
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.patch_layout import AssembledArrays
from fedquilt_common.submodels.slices import Anatomy, IndexSet, Slice
from fedquilt_common.training.out_of_memory import is_out_of_memory
from fedquilt_common.types import ExchangeId, Scalar
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader, RunMessage, SliceMessage

PROGRESS_SECONDS = 0.5
PLENTY = 1 << 30
"""Free bytes for each training process from which on it may keep what it has freed."""


class Job(BaseModel):
    """One task of one client, and where its inputs and outputs lie."""

    model_config = ConfigDict(frozen=True)

    number: int
    run_file: Path
    client: int
    round: int
    exchange: int
    kind: str
    scalars: dict[str, Scalar]
    fingerprint: str
    since: ExchangeId | None = None
    labels: bool = False
    patches: list[Path]
    slices: list[SliceMessage] = Field(default_factory=list)
    slice: int | None = None
    memory: Path | None
    reply: Path
    memory_out: Path
    allowed: list[str]
    budget: int | None = None
    limit_file: Path | None = None
    sharing: int = 1


class JobResult(BaseModel):
    """A finished job: digest and size of its reply, how many of its bytes are the head of soft labels, and whether
    there is new private memory."""

    digest: str
    size: int
    memory: bool
    head: int = 0


class _CancelledError(Exception):
    """The agent wants this job no more; raised between two training steps."""


class Worker:
    """Does jobs one after the other and keeps data set and torch between them."""

    def __init__(self, out: TextIO, threads: int = 1) -> None:
        self._out = out
        self._threads = threads
        self._board: Any = None
        self._run_file: tuple[Path, int] | None = None
        self.cancelled: set[int] = set()

    def do(self, job: Job) -> None:
        """One job; what goes wrong becomes an event with a reason, unless nobody wants the job any more."""
        try:
            done = self._done(job)
            trim_heap()
            self._say(job.number, "done", **done.model_dump())
        except Exception as error:
            if job.number in self.cancelled:  # that its patches are gone by now, for one, is no failure
                self._say(job.number, "cancelled")
            else:
                self._say(job.number, **_failure(error))

    def _say(self, number: int, event: str, **fields: object) -> None:
        self._out.write(json.dumps({"number": number, "event": event, **fields}) + "\n")
        self._out.flush()

    def _done(self, job: Job) -> JobResult:
        from fedquilt_client.context import TaskContext

        if _is_scarce(job):
            return_freed_memory(TRAINING)
        else:
            keep_freed_memory()
        board = self._board_for(job)
        seed = derive_seed(board.experiment.seed, job.round, job.exchange, job.client)
        ctx = TaskContext(
            board,
            job.client,
            job.round,
            seed,
            job.memory,
            lambda: _capacity(job),
            self._progress(job.number),
            lambda need: self._say(job.number, "training", need=need),
        )
        if job.labels and board.run.public is not None:
            _ = board.public  # labels of other samples than the coordinator's must not even be made
        task = _task(job, board)
        reply = board.algorithm.work(task, ctx)
        if ctx.memory_changed:
            write_arrays(job.memory_out, ctx.memory)
            sync(job.memory_out)
        said = _header(job, board.run, reply)
        blob = write_arrays(job.reply, reply.arrays, board.experiment.wire.up, said, labels=job.labels)
        sync(job.reply)
        return JobResult(digest=blob.digest, size=blob.size, memory=ctx.memory_changed, head=blob.head)

    def _board_for(self, job: Job) -> Any:
        from fedquilt_client.context import BoardRun

        version = (job.run_file, job.run_file.stat().st_mtime_ns)
        if self._run_file != version:
            run = RunMessage.model_validate_json(job.run_file.read_bytes())
            experiment = Experiment.model_validate_json(json.dumps(run.experiment))
            self._board, self._run_file = BoardRun(run, experiment, tuple(job.allowed), self._threads), version
        return self._board

    def _progress(self, number: int) -> Any:
        last = time.monotonic()

        def report(fraction: float) -> None:
            nonlocal last
            if number in self.cancelled:
                raise _CancelledError
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                self._say(number, "progress", value=fraction)

        return report


def _capacity(job: Job) -> int:
    """What the job may take: what is free now, and less than what has been too much before, be it a moment ago."""
    free = free_capacity(job.budget, job.sharing)
    limit = read_limit(job.limit_file) if job.limit_file else None
    return free if limit is None else min(free, limit)


def _is_scarce(job: Job) -> bool:
    """Whether memory is counted here, so that training must not take more than it needs, be it slower."""
    limited = job.budget is not None or (job.limit_file is not None and read_limit(job.limit_file) is not None)
    return limited or free_capacity(None, job.sharing) < PLENTY


def _failure(error: Exception) -> dict[str, str]:
    """The event that tells the agent of it."""
    if isinstance(error, FedquiltError):
        return {"event": "failed", "reason": str(error)}
    if is_out_of_memory(error):
        return {"event": "memory"}
    traceback.print_exception(error)  # into the agent's log: nobody foresaw this one
    return {"event": "failed", "reason": f"{type(error).__name__}: {error}"}


def _task(job: Job, board: Any) -> Task:
    """The task with what was received: a container, or the patches of a sub-model put together."""
    if job.slice is None:
        return Task(job.kind, FileArrays(job.patches[0]) if job.patches else {}, job.scalars)
    slices = [_slice(board.anatomy, one) for one in job.slices]
    mine = slices[job.slice]
    arrays = AssembledArrays(mine, slices, job.patches, board.experiment.wire.down)
    return Task(job.kind, arrays, job.scalars, slice=mine)


def _slice(anatomy: Anatomy, said: SliceMessage) -> Slice:
    """Raises SliceError when the coordinator's model has other channel groups than this board's."""
    if len(said.kept) != len(anatomy.groups):
        raise SliceError(
            f"the coordinator cuts {len(said.kept)} channel groups, this board's model has {len(anatomy.groups)}: "
            "install the same versions of fedquilt and torch, and the same model"
        )
    kept = [IndexSet.decode(group.size, one) for group, one in zip(anatomy.groups, said.kept, strict=True)]
    return Slice(anatomy, tuple(kept), frozenset(said.absent))


def _header(job: Job, run: RunMessage, reply: Reply) -> Mapping[str, str]:
    header = ReplyHeader(
        run=run.run,
        round=job.round,
        exchange=job.exchange,
        client=job.client,
        task=job.fingerprint,
        weight=float(reply.weight),
        metrics={name: float(value) for name, value in reply.metrics.items()},
        public=run.public if job.labels else None,
    )
    return {REPLY_KEY: header.model_dump_json()}


def _leave_with_parent(parent: int) -> None:
    """Leave when the agent is gone, also in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Read jobs until standard input ends."""
    return_freed_memory(TRAINING)
    # whatever a library prints must not mix with our events: keep the real stdout to ourselves
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    worker = Worker(out, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, jobs, worker.cancelled), daemon=True).start()
    while (job := jobs.get()) is not None:
        worker.do(job)


def _read(lines: TextIO, jobs: queue.SimpleQueue[Job | None], cancelled: set[int]) -> None:
    """A line is a job, or ``{"cancel": number}`` about one that was given before; None ends the jobs."""
    for line in lines:
        said = json.loads(line)
        if "cancel" in said:
            cancelled.add(said["cancel"])
        else:
            jobs.put(Job.model_validate_json(line))
    jobs.put(None)


if __name__ == "__main__":
    main()
