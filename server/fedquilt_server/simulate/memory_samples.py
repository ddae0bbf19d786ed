"""The peak memory of a simulation's processes, as the kernel counts it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import psutil

from fedquilt_common.process.forked import WORKER_NAME
from fedquilt_common.process.process_memory import PROC, peak_bytes


@dataclass
class Memory:
    """Peak resident memory in bytes: of the process, and of its largest training process (``workers``)."""

    peak: int = 0
    workers: int = 0


class MemorySampler:
    """Looks at the memory of processes, and of their training processes, again and again.

    Asking the system whose a process is takes longer than the rest, so each process is asked about once: a hundred
    boards have several hundred processes.
    """

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}

    def sample(self, memories: Mapping[int, Memory], servers: Collection[int] = ()) -> None:
        """Raise the peaks to what they are now.

        Args:
            memories: what is known so far, by process id.
            servers: the fork servers among them; a fork that has no name yet belongs to nobody.
        """
        for pid, memory in memories.items():
            memory.peak = max(memory.peak, _peak(pid))
        for worker, owner in self._find_others(memories, servers).items():
            if owner in memories:
                memories[owner].workers = max(memories[owner].workers, _peak(worker))

    def _find_others(self, memories: Mapping[int, Memory], servers: Collection[int]) -> dict[int, int]:
        """Return all other processes, each with the one that has asked for it."""
        running = [pid for pid in psutil.pids() if pid not in memories]
        known = {pid: self._owners[pid] if pid in self._owners else _find_owner(pid) for pid in running}
        self._owners = {pid: owner for pid, owner in known.items() if owner is not None and owner not in servers}
        return self._owners


def _find_owner(pid: int) -> int | None:
    """Return which process has asked for this one: by its name if it is a fork; None if it has ended."""
    try:
        process = psutil.Process(pid)
        name = process.name()
        owner = name.removeprefix(WORKER_NAME) if name.startswith(WORKER_NAME) else ""
        return int(owner) if owner.isdigit() else process.ppid()
    except psutil.Error:
        return None


def _peak(pid: int) -> int:
    """Return the peak resident memory in bytes on Linux, elsewhere the current one; 0 if the process has ended."""
    peak = peak_bytes(PROC / str(pid))
    if peak is not None:
        return peak
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
