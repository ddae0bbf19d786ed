"""The training process: reads jobs from standard input and writes events to standard output, one JSON line each.

The agent starts it. It may be killed at any time, and it exits when the agent has ended.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from fedquilt_client.capacity import free_capacity, read_limit
from fedquilt_client.failures import DamagedInputError, describe_failure
from fedquilt_client.global_seeds import seed_globals
from fedquilt_client.written_replies import reply_header, round_figure, write_joint_reply, write_reply
from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.errors import (
    ExperimentError,
    RunFailedError,
    SliceError,
)
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.durable import sync
from fedquilt_common.files.file_stamp import FileStamp, stamp
from fedquilt_common.own_code import check_own_code
from fedquilt_common.process.malloc import TRAINING, keep_freed_memory, return_freed_memory, trim_heap
from fedquilt_common.process.process_memory import (
    free_gpu_bytes,
    gpu_peak_bytes,
    peak_bytes,
    release_gpu_cache,
    reset_gpu_peak,
    reset_peak,
)
from fedquilt_common.secure_aggregation.tasks import EXCHANGE
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.patch_layout import AssembledArrays
from fedquilt_common.submodels.slices import Anatomy, IndexSet, Slice
from fedquilt_common.training_jobs import Job
from fedquilt_common.user_imports import USER_ERRORS, describe_sys_exit
from fedquilt_common.wire.codec import PackedArrays, open_arrays, pack_arrays, write_arrays
from fedquilt_common.wire.messages import ReplyHeader, RunMessage
from fedquilt_common.wire.round_messages import SliceMessage
from fedquilt_common.worker_lines import (
    CancelledLine,
    CancelLine,
    DoneLine,
    EnergyLine,
    ProcessLine,
    ProgressLine,
    TrainedLine,
    TrainingLine,
    parse_agent_line,
)

if TYPE_CHECKING:
    from fedquilt_client.context import TaskContext

PROGRESS_SECONDS = 0.5
_REMEMBERED: Final = 10_000
"""Files whose digests were right and are not computed again."""
PLENTY = 1 << 30
"""A training process with at least this many free bytes keeps the memory that it frees."""
MEMORY_SECONDS: Final = 1.0
"""Time between two readings of the free memory when jobs start: small jobs must not wait for them."""
QUICK_SECONDS: Final = 0.1
"""A job that took less has used the power that it began with, and the next one may reuse its memory."""
IDLE_SECONDS: Final = 0.1
"""Time without a job after which the process returns its free memory."""
JOINT_SECONDS: Final = 0.5
"""Time after which a joint job begins no further task; the agent gives these to other jobs."""


class _CancelledError(Exception):
    """The agent has cancelled the job; raised between two training steps."""


@dataclass(frozen=True)
class _DoneTask:
    """What a client has worked out, before it is written."""

    ctx: TaskContext
    reply: Reply
    header: ReplyHeader


def _without_exit(error: BaseException) -> Exception:
    """Return an error of a job; a ``sys.exit`` of a user's code, which ends no process, becomes one."""
    if isinstance(error, SystemExit):
        return RunFailedError(f"the experiment's code {describe_sys_exit(error, '')}")
    assert isinstance(error, Exception)  # noqa: S101 - USER_ERRORS has no other
    return error


class Worker:
    """Does jobs one after another; keeps the data set and torch loaded between them."""

    def __init__(self, out: TextIO, threads: int = 1) -> None:
        self._out = out
        self._threads = threads
        self._board: Any = None
        self._run_file: tuple[Path, int] | None = None
        self._intact: dict[Path, FileStamp | None] = {}
        self.cancelled: set[int] = set()
        self.energies: queue.SimpleQueue[EnergyLine | None] = queue.SimpleQueue()
        """Answers to each ``TrainedLine``; None ends them."""
        self._began = self._joules = 0.0
        self._memory_at, self._free = -math.inf, 0
        self._opened: tuple[tuple[Path, FileStamp | None], PackedArrays] | None = None

    def do(self, job: Job) -> None:
        """Do one job; an error becomes an event with a reason, unless the job is cancelled."""
        began = self._began = time.monotonic()
        self._joules = 0.0
        try:
            result = self._work(job)
            if time.monotonic() - began >= QUICK_SECONDS:
                trim_heap()
            self._emit(result)
        except USER_ERRORS as error:
            if job.number in self.cancelled:  # its patches may be deleted already, so the error is no failure
                self._emit(CancelledLine(number=job.number))
            else:
                self._emit(describe_failure(job.number, _without_exit(error), private=self._is_private(job)))
        finally:
            release_gpu_cache()

    def _is_private(self, job: Job) -> bool:
        """Whether the job's client trains with differential privacy; unknown before its run is read."""
        known = self._run_file is not None and self._run_file[0] == job.run_file
        return known and self._board.experiment.variant(job.client).privacy is not None

    def _emit(self, line: ProcessLine) -> None:
        try:
            self._out.write(line.model_dump_json() + "\n")
            self._out.flush()
        except BrokenPipeError:
            os._exit(1)  # the agent has ended, so there is nobody to report this to either

    def _work(self, job: Job) -> DoneLine:
        """Do one job and write its files."""
        if self._is_scarce(job):
            return_freed_memory(TRAINING)
        else:
            keep_freed_memory()
        self._check_inputs(job)
        board = self._board_for(job)
        if job.members:
            return self._do_together(job, board)
        done = self._do_task(job, board)
        ctx, memory = done.ctx, None
        if ctx.memory_changed:
            memory = write_arrays(job.memory_out, ctx.memory_to_store).digest
            sync(job.memory_out)
        blob = write_reply(job, done.reply.arrays, board.experiment.wire.up, done.header)
        if memory is not None or job.memory is not None:
            sync(job.reply)  # a reply without memory can be trained again after a power cut
        return DoneLine(
            number=job.number,
            digest=blob.digest,
            size=blob.size,
            memory=memory,
            head=blob.head,
            memoryless=board.is_memoryless and memory is None,
            spent=ctx.spending(),
        )

    def _do_together(self, job: Job, board: Any) -> DoneLine:
        """Do the tasks of a joint job, as many as its time allows, and write the sum of their replies."""
        from fedquilt_common.partial_sums.members import SumMember

        until = time.monotonic() + JOINT_SECONDS
        members, replies = list[SumMember](), list[PackedArrays]()
        for client, fingerprint in job.members:
            if job.number in self.cancelled:
                raise _CancelledError
            if len(members) > 1 and time.monotonic() >= until:  # a sum has two members at least
                break
            self._began = time.monotonic()
            done = self._do_task(job.model_copy(update={"client": client, "fingerprint": fingerprint}), board)
            if done.ctx.memory_changed:
                raise ExperimentError(
                    "the algorithm declares private_memory=False, but a client has changed its memory"
                )
            members.append(SumMember(client, fingerprint, done.header.weight, done.header.metrics))
            replies.append(pack_arrays(done.reply.arrays, board.experiment.wire.up))
        blob = write_joint_reply(job, board.run.run, members, replies, self._open(job.patches[0].path))
        return DoneLine(number=job.number, digest=blob.digest, size=blob.size, memoryless=True, done=len(members))

    def _do_task(self, job: Job, board: Any) -> _DoneTask:
        """Do the task of one client."""
        from fedquilt_client.context import TaskContext
        from fedquilt_client.privacy_account import check_owner_limit

        has_peak = job.measured and reset_peak()
        reset_gpu_peak()
        check_owner_limit(board.experiment.variant(job.client).privacy, job.max_epsilon, job.max_delta)
        exchange = int(job.scalars.get(EXCHANGE, job.exchange))
        seed = derive_seed(board.experiment.seed, job.round, exchange, job.client)
        ctx = TaskContext(
            board,
            job.client,
            job.round,
            seed,
            job.memory.path if job.memory else None,
            lambda: _capacity(job),
            self._progress(job.number),
            lambda need: self._emit(TrainingLine(number=job.number, need=need)),
            job.fitting,
            job.data,
            job,
            job.kind,
        )
        if job.labels and board.run.public is not None:
            _ = ctx.public  # raises if the public set differs from the coordinator's
        seed_globals(seed)
        reply = ctx.do(self._task(job, board))
        taken = {
            "joules": round_figure(self._find_energy(job)),
            "memory_peak": peak_bytes() if has_peak else None,
            "gpu_memory_peak": gpu_peak_bytes() if job.measured else None,
        }
        return _DoneTask(ctx, reply, reply_header(job, board.run, reply, taken))

    def _find_energy(self, job: Job) -> float | None:
        """Return the joules that the task has taken, None if unknown; for a long job, the agent measures them."""
        if not (job.measured and job.metered):
            return None
        seconds = time.monotonic() - self._began
        if job.watts is not None and seconds < QUICK_SECONDS:
            joules = job.watts * seconds
        elif (total := self._ask_for_energy(job)) is not None:
            joules = max(0.0, total - self._joules)
        else:
            return None
        self._joules += joules
        return joules

    def _ask_for_energy(self, job: Job) -> float | None:
        """Ask the agent for the joules of the job up to now; None if it does not know."""
        self._emit(TrainedLine(number=job.number))
        while (answer := self.energies.get()) is not None:
            if answer.energy == job.number:  # one to a job that was cancelled may be left
                return answer.joules
        return None

    def _is_scarce(self, job: Job) -> bool:
        """Whether training must save memory although that is slower: memory is limited, or little is free."""
        if job.budget is not None or (job.limit_file is not None and read_limit(job.limit_file) is not None):
            return True
        if self._began >= self._memory_at + MEMORY_SECONDS:
            self._memory_at, self._free = self._began, free_capacity(None, job.sharing)
        return self._free < PLENTY

    def _check_inputs(self, job: Job) -> None:
        """Check the digests of the job's files; what many clients or rounds share is read once."""
        for file in (*job.patches, *([job.memory] if job.memory else []), *(job.data.files if job.data else [])):
            found = stamp(file.path)
            is_known = found is not None and found in (file.intact, self._intact.get(file.path))
            if not (is_known or file.is_intact()):
                raise DamagedInputError(str(file.path))
            self._intact[file.path] = found
        while len(self._intact) > _REMEMBERED:
            del self._intact[next(iter(self._intact))]

    def _board_for(self, job: Job) -> Any:
        from fedquilt_client.context import BoardRun

        version = (job.run_file, job.run_file.stat().st_mtime_ns)
        if self._run_file != version:
            run = RunMessage.model_validate_json(job.run_file.read_bytes())
            experiment = Experiment.model_validate_json(json.dumps(run.experiment))
            check_own_code(run.code, experiment, job.allowed)
            self._board, self._run_file = BoardRun(run, experiment, tuple(job.allowed), self._threads), version
        return self._board

    def _task(self, job: Job, board: Any) -> Task:
        """Return the task with the received arrays: a container, or the patches of a sub-model."""
        if job.slice is None:
            arrays = self._open(job.patches[0].path) if job.patches else {}
            return Task(job.kind, arrays, job.scalars)
        slices = [_slice(board.anatomy, message) for message in job.slices]
        own = slices[job.slice]
        arrays = AssembledArrays(own, slices, [patch.path for patch in job.patches], board.experiment.wire.down)
        return Task(job.kind, arrays, job.scalars, slice=own)

    def _open(self, path: Path) -> PackedArrays:
        """Return the arrays of a container; clients that get the same one share it."""
        version = path, stamp(path)
        if self._opened is None or self._opened[0] != version:
            self._opened = version, open_arrays(path)
        return self._opened[1]

    def _progress(self, number: int) -> Any:
        last = time.monotonic()

        def report(fraction: float) -> None:
            nonlocal last
            if number in self.cancelled:
                raise _CancelledError
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                self._emit(ProgressLine(number=number, value=fraction))

        return report


def _capacity(job: Job) -> int:
    """Return the bytes that the job may take: the free memory, or the last limit that ran out of memory if lower.

    A GPU with memory of its own limits it too. That of a Jetson is the board's memory, and counts once.
    """
    free = free_capacity(job.budget, job.sharing)
    if (on_gpu := free_gpu_bytes()) is not None:
        free = min(free, on_gpu // max(1, job.sharing))
    limit = read_limit(job.limit_file) if job.limit_file else None
    return free if limit is None else min(free, limit)


def _slice(anatomy: Anatomy, message: SliceMessage) -> Slice:
    """Decode a slice.

    Raises:
        SliceError: the coordinator's model has other channel groups than this board's.
    """
    if len(message.kept) != len(anatomy.groups):
        raise SliceError(
            f"the coordinator cuts {len(message.kept)} channel groups, this board's model has {len(anatomy.groups)}: "
            "install the same versions of fedquilt and torch, and the same model"
        )
    pairs = zip(anatomy.groups, message.kept, strict=True)
    kept = [IndexSet.decode(group.size, index_set) for group, index_set in pairs]
    return Slice(anatomy, tuple(kept), frozenset(message.absent))


def _exit_with_parent(parent: int) -> None:
    """Exit when the agent has ended, even in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Read jobs until standard input ends."""
    return_freed_memory(TRAINING)
    # libraries may print to stdout: events get a descriptor of their own, stdout goes to stderr
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    worker = Worker(out, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, jobs, worker), daemon=True).start()
    while (job := _next_job(jobs)) is not None:
        worker.do(job)


def _next_job(jobs: queue.SimpleQueue[Job | None]) -> Job | None:
    """Return the next job; a process that has to wait for it first returns its free memory to the system."""
    try:
        return jobs.get(timeout=IDLE_SECONDS)
    except queue.Empty:
        trim_heap()
        return jobs.get()


def _read(lines: TextIO, jobs: queue.SimpleQueue[Job | None], worker: Worker) -> None:
    """Read the agent's lines until the last one; None ends the jobs."""
    for line in lines:
        if not line.endswith("\n"):
            break  # the agent was killed while it wrote
        if line.startswith('{"number"'):  # a job, whose first field this is: parsing it twice would take longer
            jobs.put(Job.model_validate_json(line))
        elif isinstance(message := parse_agent_line(line), CancelLine):
            worker.cancelled.add(message.cancel)
        else:
            worker.energies.put(message)
    worker.energies.put(None)
    jobs.put(None)


if __name__ == "__main__":
    main()
