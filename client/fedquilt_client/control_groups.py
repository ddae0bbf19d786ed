"""The memory control groups (cgroup v1 or v2) that this process is in: their limits, what they use, and their kills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
_NO_LIMIT: Final = 1 << 60
"""cgroup v1 writes a number above this where there is no limit."""


@dataclass(frozen=True)
class _MemoryFiles:
    """Names of the memory files and fields of one cgroup version."""

    mount: str
    limit: str
    usage: str
    reclaimable: str
    kills: str


_V2: Final = _MemoryFiles("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events")
_V1: Final = _MemoryFiles(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)


@dataclass(frozen=True)
class MemoryGroup:
    """One memory control group; its numbers are read when they are asked for, in bytes.

    Args:
        files: names of its files.
        folder: where they are.
    """

    files: _MemoryFiles
    folder: Path

    @property
    def limit(self) -> int | None:
        """What its processes may take together; None without a limit."""
        limit = read_integer(self.folder / self.files.limit)
        return limit if limit is not None and limit < _NO_LIMIT else None

    @property
    def usage(self) -> int | None:
        """What its processes take, with the file cache; None if it cannot be read."""
        return read_integer(self.folder / self.files.usage)

    @property
    def reclaimable(self) -> int:
        """The part of ``usage`` that is file cache which the kernel can reclaim."""
        return read_field(self.folder / "memory.stat", self.files.reclaimable) or 0

    @property
    def kills(self) -> int:
        """How often the system killed one of its processes for memory."""
        return read_field(self.folder / self.files.kills, "oom_kill") or 0


def memory_groups(root: Path = ROOT) -> Iterator[MemoryGroup]:
    """Yield the memory control group of this process and all groups above it that are visible from here.

    Args:
        root: root of the file system that ``proc`` and ``sys`` are read from.
    """
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        files = _V1 if "memory" in controllers.split(",") else _V2 if controllers == "" else None
        if files is None:
            continue
        top = root / files.mount
        group = top / path.strip("/")
        while group != top and group.is_relative_to(top):
            yield MemoryGroup(files, group)
            group = group.parent
        yield MemoryGroup(files, top)


def tightest_group(root: Path = ROOT) -> tuple[int, MemoryGroup] | None:
    """Return the least limit of this process's groups with the group that has it; None if no group has a limit.

    Args:
        root: as in ``memory_groups``.
    """
    limits = [(limit, group) for group in memory_groups(root) if (limit := group.limit) is not None]
    return min(limits, key=lambda found: found[0], default=None)


def read_integer(path: Path) -> int | None:
    """Return the number in a file; None if it is absent or has none, such as "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def read_field(path: Path, name: str) -> int | None:
    """Return the number after ``name`` in a file of "name number" lines."""
    for line in _read_lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
