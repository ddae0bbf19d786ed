"""How much memory training can take on this board, and how often the system killed a process for memory. In bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from fedquilt_client.control_groups import ROOT, memory_groups, read_field, read_integer
from fedquilt_common.files.durable import write_durably

RESERVE: Final = 0.05
"""The part of the free memory that training leaves to the agent and the system."""
LOWERED: Final = 0.9
"""The new limit after training ran out of memory, as a fraction of the announced need."""


def free_capacity(budget: int | None = None, sharing: int = 1, root: Path = ROOT) -> int:
    """Return the bytes that one training process may take now.

    The free memory is the least of what the system has available and what each control group above this process
    leaves. A group's file cache counts as free, because the kernel can reclaim it. ``RESERVE`` of the free memory
    stays unused.

    Args:
        budget: the owner's limit for all training processes together; None: no limit of the owner's.
        sharing: number of training processes that share the memory.
        root: as in ``memory_groups``.
    """
    free = min([psutil.virtual_memory().available, *_free_in_groups(root)])
    usable = int(max(0, free) * (1 - RESERVE))
    return (usable if budget is None else min(usable, budget)) // max(1, sharing)


def read_limit(file: Path) -> int | None:
    """Return the limit that ``lower_limit`` stored, in bytes; None if there is none."""
    return read_integer(file)


def lower_limit(file: Path, need: int) -> int:
    """Lower the limit after training ran out of memory, and store it in ``file``.

    Training that needed more than the stored limit began before the limit was set. It does not change the limit.

    Args:
        file: where the limit is stored.
        need: estimated bytes of the training that ran out of memory.

    Returns:
        The limit in bytes that holds from now on.
    """
    before = read_limit(file)
    if before is not None and need > before:
        return before
    limit = int(LOWERED * need)
    write_durably(file, str(limit))
    return limit


def oom_kills(root: Path = ROOT) -> int:
    """Return how often the system killed a process for memory, on this machine and in our control groups.

    The number never decreases.
    """
    on_machine = read_field(root / "proc/vmstat", "oom_kill") or 0
    return on_machine + sum(group.kills for group in memory_groups(root))


def _free_in_groups(root: Path) -> Iterator[int]:
    for group in memory_groups(root):
        limit, usage = group.limit, group.usage
        if limit is not None and usage is not None:
            yield limit - usage + group.reclaimable
