"""How much memory training can take on this board, and how often the system killed a process for memory. In bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.files.durable import write_durably

RESERVE: Final = 0.05
"""The part of the free memory that training leaves to the agent and the system."""
LOWERED: Final = 0.9
"""The new limit after training ran out of memory, as a fraction of the announced need."""
_NO_LIMIT: Final = 1 << 60
"""cgroup v1 writes a number above this where there is no limit."""


@dataclass(frozen=True)
class _CgroupFiles:
    """Names of the memory files and fields of one cgroup version."""

    mount: str
    limit: str
    usage: str
    reclaimable: str
    kills: str


_V2: Final = _CgroupFiles("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events")
_V1: Final = _CgroupFiles(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)


def free_capacity(budget: int | None = None, sharing: int = 1, root: Path = Path("/")) -> int:
    """Return the bytes that one training process may take now.

    The free memory is the least of what the system has available and what each control group above this process
    leaves. A group's file cache counts as free, because the kernel can reclaim it. ``RESERVE`` of the free memory
    stays unused.

    Args:
        budget: the owner's limit for all training processes together; None: no limit of the owner's.
        sharing: number of training processes that share the memory.
        root: root of the file system that ``proc`` and ``sys`` are read from.
    """
    free = min([psutil.virtual_memory().available, *_free_in_cgroups(root)])
    usable = int(max(0, free) * (1 - RESERVE))
    return (usable if budget is None else min(usable, budget)) // max(1, sharing)


def read_limit(file: Path) -> int | None:
    """Return the limit that ``lower_limit`` stored, in bytes; None if there is none."""
    return _read_number(file)


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


def oom_kills(root: Path = Path("/")) -> int:
    """Return how often the system killed a process for memory, on this machine and in our control groups.

    The number never decreases.
    """
    on_machine = _read_field(root / "proc/vmstat", "oom_kill") or 0
    return on_machine + sum(_read_field(group / files.kills, "oom_kill") or 0 for files, group in _cgroups(root))


def _free_in_cgroups(root: Path) -> Iterator[int]:
    for files, group in _cgroups(root):
        limit, usage = _read_number(group / files.limit), _read_number(group / files.usage)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            yield limit - usage + (_read_field(group / "memory.stat", files.reclaimable) or 0)


def _cgroups(root: Path) -> Iterator[tuple[_CgroupFiles, Path]]:
    """Yield our memory control group and all groups above it that are visible from here."""
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        files = _V1 if "memory" in controllers.split(",") else _V2 if controllers == "" else None
        if files is None:
            continue
        top = root / files.mount
        group = top / path.strip("/")
        while group != top and group.is_relative_to(top):
            yield files, group
            group = group.parent
        yield files, top


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max": no limit
        return None


def _read_field(path: Path, name: str) -> int | None:
    """Return the number after ``name`` in a file of "name number" lines."""
    for line in _read_lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
