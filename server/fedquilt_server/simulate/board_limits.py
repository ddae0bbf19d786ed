"""What a simulated board may use, and how the kernel's control groups (cgroup v2) enforce it.

Linux' documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html. A group limits the processes in it and all
that they start. Groups are created in one of two ways: by systemd, as scopes, or as folders below the own group.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from fedquilt_common.errors import FedquiltError
from fedquilt_common.experiment.sections import FleetLine
from fedquilt_server.simulate.child_process import ChildSpec

ROOT: Final = Path("/")
_PERIOD: Final = 100_000
"""Microseconds of a period of ``cpu.max``: a board with half a processor may use 50,000 of them."""
_SWAP: Final = "memory.swap.max"
_SUPERVISOR: Final = "fedquilt-simulate"
_PROBE_SECONDS: Final = 10.0
_PROBE: Final = (
    'g=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); for f in memory.max cpu.max; do cat "$g/$f" || echo; done'
)
"""Prints the limits of its own group, one in each line; ``max`` where there is none, nothing without the file."""


class LimitsError(FedquiltError):
    """Limits cannot be enforced here; the text says why."""


@dataclass(frozen=True)
class BoardLimits:
    """The limits of one board: bytes of memory without swap, and processors; None: no limit."""

    memory: int | None = None
    cpus: float | None = None

    @staticmethod
    def of_line(line: FleetLine) -> BoardLimits:
        """Return the limits of each board of a fleet's line."""
        return BoardLimits(None if line.memory is None else int(line.memory), line.cpus)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The kernel's controllers that the limits need."""
        wanted = {"cpu": self.cpus, "memory": self.memory}
        return tuple(name for name, limit in wanted.items() if limit is not None)

    @property
    def files(self) -> Mapping[str, str]:
        """The files of a group and what to write into them."""
        files = {}
        if self.memory is not None:
            files["memory.max"] = str(self.memory)
        if self.cpus is not None:
            files["cpu.max"] = f"{max(1000, round(self.cpus * _PERIOD))} {_PERIOD}"
        return files


class Limiter(Protocol):
    """Puts boards into groups with limits."""

    name: str
    """What enforces the limits, for people."""

    def limit(self, spec: ChildSpec, limits: BoardLimits) -> ChildSpec:
        """Return a process that starts in a group with the limits.

        Raises:
            LimitsError: the group cannot be created.
        """

    def close(self) -> None:
        """Remove the groups, after the processes have ended."""


class SystemdLimiter:
    """Starts each process as a transient scope; ``systemd-run`` becomes the process, so its id and signals stay."""

    name = "systemd"

    def __init__(self) -> None:
        self._options = ("--scope", "--quiet", "--collect", *(() if os.geteuid() == 0 else ("--user",)))

    def command(self, limits: BoardLimits) -> tuple[str, ...]:
        """Return the words before a command that limit it."""
        values: dict[str, str] = {}
        if limits.memory is not None:
            values |= {"MemoryMax": str(limits.memory), "MemorySwapMax": "0"}
        if limits.cpus is not None:
            values["CPUQuota"] = f"{max(1.0, round(100 * limits.cpus, 2)):g}%"
        return ("systemd-run", *self._options, *(f"--property={name}={value}" for name, value in values.items()), "--")

    def check(self, limits: BoardLimits) -> None:
        """Check that a scope really has the limits; a user's systemd may not have all controllers.

        Raises:
            LimitsError: it has not, or there is no systemd.
        """
        if shutil.which("systemd-run") is None:
            raise LimitsError("there is no systemd-run")
        command = [*self.command(limits), "sh", "-c", _PROBE]
        try:
            done = subprocess.run(  # noqa: S603 - the words are our own
                command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LimitsError(f"systemd-run: {error}") from None
        if done.returncode != 0:
            raise LimitsError(f"systemd-run: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
        memory, cpu = [*done.stdout.split("\n"), "", ""][:2]
        found = {"memory": memory, "cpu": cpu}
        if lacking := [name for name in limits.controllers if found[name].startswith("max") or not found[name]]:
            raise LimitsError(f"systemd does not control {' and '.join(lacking)} for this user")

    def limit(self, spec: ChildSpec, limits: BoardLimits) -> ChildSpec:
        """Return the process as a scope."""
        return replace(spec, argv=(*self.command(limits), *spec.argv))

    def close(self) -> None:
        """Do nothing: systemd removes a scope with its last process."""


class CgroupLimiter:
    """Creates a group for each process below the group of this process.

    Args:
        controllers: what the groups must control.
        root: root of the file system that has ``proc`` and ``sys``.

    Raises:
        LimitsError: the user may not create groups here, or a controller is missing.
    """

    name = "control groups"

    def __init__(self, controllers: tuple[str, ...], root: Path = ROOT) -> None:
        self._own = _own_group(root)
        self._groups = self._own / f"{_SUPERVISOR}-{os.getpid()}"
        self._controllers = controllers
        available = _read(self._own / "cgroup.controllers").split()
        if lacking := [name for name in controllers if name not in available]:
            raise LimitsError(f"the control group {self._own} does not control {' and '.join(lacking)}")
        try:
            self._enable()
        except OSError as error:
            self.close()
            raise LimitsError(f"no control groups can be created below {self._own}: {error.strerror}") from None

    def _enable(self) -> None:
        """Create the group of all boards. A group with controlled groups below must have no process of its own."""
        self._groups.mkdir(exist_ok=True)
        if set(self._controllers) - set(_read(self._own / "cgroup.subtree_control").split()):
            if _read(self._own / "cgroup.procs").split() == [str(os.getpid())]:
                leaf = self._own / _SUPERVISOR
                leaf.mkdir(exist_ok=True)
                (leaf / "cgroup.procs").write_text(str(os.getpid()))
            (self._own / "cgroup.subtree_control").write_text(self._wanted)
        (self._groups / "cgroup.subtree_control").write_text(self._wanted)

    @property
    def _wanted(self) -> str:
        return " ".join(f"+{name}" for name in self._controllers)

    def limit(self, spec: ChildSpec, limits: BoardLimits) -> ChildSpec:
        """Return the process with the group that it enters before its program begins."""
        group = self._groups / spec.name
        try:
            group.mkdir(exist_ok=True)
            for name, value in limits.files.items():
                (group / name).write_text(value)
            with contextlib.suppress(OSError):  # a kernel without accounting of swap has no such file
                (group / _SWAP).write_text("0")
        except OSError as error:
            raise LimitsError(
                f"the control group {group} cannot be limited: {error.strerror}; use --no-limits"
            ) from None
        return replace(spec, group=group)

    def close(self) -> None:
        """Remove the groups; one whose processes have not ended yet stays."""
        groups = [path for path in self._groups.iterdir() if path.is_dir()] if self._groups.is_dir() else []
        for group in (*groups, self._groups):
            with contextlib.suppress(OSError):
                group.rmdir()


def find_limiter(limits: BoardLimits, root: Path = ROOT) -> Limiter:
    """Return what can enforce limits of these kinds here: systemd if it runs, else the own control group.

    Raises:
        LimitsError: nothing can; the text has the reasons.
    """
    try:
        systemd = SystemdLimiter()
        systemd.check(limits)
        return systemd
    except LimitsError as first:
        try:
            return CgroupLimiter(limits.controllers, root)
        except LimitsError as second:
            raise LimitsError(f"{first}; {second}") from None


def _own_group(root: Path) -> Path:
    """Return the folder of this process's group.

    Raises:
        LimitsError: the system has no cgroup v2.
    """
    lines = _read(root / "proc/self/cgroup").splitlines()
    mounts = [line.split() for line in _read(root / "proc/self/mounts").splitlines()]
    mounted = [words[1] for words in mounts if len(words) > 2 and words[2] == "cgroup2"]
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    if not mounted or not paths:
        raise LimitsError("this system has no control groups of version 2")
    return root / mounted[0].lstrip("/") / paths[0].lstrip("/")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
