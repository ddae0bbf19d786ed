"""The peak memory of a simulation's processes, as the kernel counts it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import psutil

from fedquilt_common.process.forked import WORKER_NAME
from fedquilt_common.process.process_memory import PROC, peak_bytes


@dataclass
class Memory:
    """Peak resident memory in bytes: of the process, and of its largest training process (``workers``)."""

    peak: int = 0
    workers: int = 0


def sample_memory(memories: Mapping[int, Memory], servers: Collection[int] = ()) -> None:
    """Raise the peaks of processes, and of their training processes, to what they are now.

    Args:
        memories: what is known so far, by process id.
        servers: the fork servers among them; a fork that has no name yet belongs to nobody.
    """
    for pid, memory in memories.items():
        memory.peak = max(memory.peak, _peak(pid))
    for worker, owner in _others(memories):
        if owner in memories and owner not in servers:
            memories[owner].workers = max(memories[owner].workers, _peak(worker))


def _others(memories: Mapping[int, Memory]) -> Iterator[tuple[int, int]]:
    """Yield all other processes, each with the one that has asked for it: by its name if it is a fork."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in memories:
                name = process.name()
                owner = name.removeprefix(WORKER_NAME) if name.startswith(WORKER_NAME) else ""
                yield process.pid, int(owner) if owner.isdigit() else process.ppid()


def _peak(pid: int) -> int:
    """Return the peak resident memory in bytes on Linux, elsewhere the current one; 0 if the process has ended."""
    peak = peak_bytes(PROC / str(pid))
    if peak is not None:
        return peak
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
