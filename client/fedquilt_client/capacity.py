"""How much memory training may take on this board now, and whether the system has killed for memory. In bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.files.durable import write_durably

RESERVE: Final = 0.05
"""The part of what is free that is left alone: the agent itself and the system go on needing memory."""
LOWERED: Final = 0.9
"""What is tried after a need that was too much, as a part of it."""
_NO_LIMIT: Final = 1 << 60
"""cgroup v1 writes an absurdly high number where there is no limit."""


@dataclass(frozen=True)
class _Names:
    """What the files of a cgroup version are called."""

    mount: str
    limit: str
    usage: str
    reclaimable: str
    kills: str


_V2: Final = _Names("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events")
_V1: Final = _Names(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)


def free_capacity(budget: int | None = None, sharing: int = 1, root: Path = Path("/")) -> int:
    """What one of ``sharing`` training processes may take now.

    The least of: what the system has available, what each control group above this process leaves (its file cache
    does not count, the kernel takes that back), less a reserve; and the owner's ``budget`` for all of them together.
    """
    free = min([psutil.virtual_memory().available, *_left_by_groups(root)])
    usable = int(max(0, free) * (1 - RESERVE))
    return (usable if budget is None else min(usable, budget)) // max(1, sharing)


def read_limit(file: Path) -> int | None:
    """What ``lower_limit`` left there."""
    return _number(file)


def lower_limit(file: Path, need: int) -> int:
    """Training that needed ``need`` bytes was too much: the new limit, kept in ``file``.

    A need above the limit was begun before there was one, and teaches nothing new.
    """
    before = read_limit(file)
    if before is not None and need > before:
        return before
    limit = int(LOWERED * need)
    write_durably(file, str(limit))
    return limit


def oom_kills(root: Path = Path("/")) -> int:
    """How often the system has killed a process for memory, here and in our control groups; only ever grows."""
    here = _field(root / "proc/vmstat", "oom_kill") or 0
    return here + sum(_field(group / names.kills, "oom_kill") or 0 for names, group in _groups(root))


def _left_by_groups(root: Path) -> Iterator[int]:
    for names, group in _groups(root):
        limit, usage = _number(group / names.limit), _number(group / names.usage)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            yield limit - usage + (_field(group / "memory.stat", names.reclaimable) or 0)


def _groups(root: Path) -> Iterator[tuple[_Names, Path]]:
    """Our memory control group and all above it, as far as they can be seen from here."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        names = _V1 if "memory" in controllers.split(",") else _V2 if controllers == "" else None
        if names is None:
            continue
        top = root / names.mount
        group = top / path.strip("/")
        while group != top and group.is_relative_to(top):
            yield names, group
            group = group.parent
        yield names, top


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max": no limit
        return None


def _field(path: Path, name: str) -> int | None:
    """The number behind ``name`` in a file of "name number" lines."""
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
