"""Samples the memory and processor time of every process of a measurement, through /proc (Linux only).

A measurement marks the environment of the process that it starts. All descendants inherit the mark, so a process counts
even if it leaves its parent, as Ray's and a SuperNode's do.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "FEDQUILT_MEASUREMENT"
INTERVAL = 0.5
"""Least seconds between two samples."""
SHARE = 0.02
"""Sampling takes at most this share of one processor, so it is rarer with hundreds of processes."""
ROLES: Mapping[str, str] = {
    r"mosquitto": "broker",
    r"fedquilt_client\.worker": "worker",
    r"fedquilt_common\.cli coordinator": "coordinator",
    r"fedquilt_common\.cli agent": "agent",
    r"fedquilt_common\.cli (bench|simulate)": "command",
    r"flower-superexec": "SuperExec",
    r"flower-superlink": "SuperLink",
    r"flower-supernode": "SuperNode",
    r"flwr-serverapp": "ServerApp",
    r"flwr-clientapp": "ClientApp",
    r"flwr-simulation": "simulation",
    r"bin/flwr ": "command",
    r"^ray::ClientAppActor": "Ray actor",
    r"ray": "Ray services",
}
"""Pattern of a command line -> role; the first match counts."""


@dataclass
class RoleUse:
    """What the processes of one role used.

    Attributes:
        count: the most that ran at once.
        started: all that ran.
        peak_bytes: the highest resident memory of one process, as the kernel recorded it.
        pss_bytes: the highest sum of their proportional set sizes.
        processor_seconds: user and system time of all, as last sampled.
    """

    count: int = 0
    started: int = 0
    peak_bytes: int = 0
    pss_bytes: int = 0
    processor_seconds: float = 0.0


@dataclass
class ProcessWatch:
    """Samples all marked processes in a thread, inside a ``with`` block; kills those that remain at its end.

    Attributes:
        pss_bytes: the highest sum of the proportional set sizes of all processes.
    """

    pss_bytes: int = 0
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _roles: dict[str, RoleUse] = field(default_factory=lambda: defaultdict(RoleUse))
    _known: dict[tuple[int, str], bool] = field(default_factory=dict)
    _seen: dict[tuple[int, str], tuple[str, float]] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment for the first process: this one's, with the mark."""
        return {**os.environ, MARK: self._mark}

    def __enter__(self) -> ProcessWatch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        assert self._thread  # noqa: S101 - __enter__ has set it
        self._thread.join()
        self._kill_rest()

    def _run(self) -> None:
        pause = INTERVAL
        while not self._end.wait(pause):
            start = time.thread_time()
            self.sample()
            pause = max(INTERVAL, (time.thread_time() - start) / SHARE)

    def sample(self) -> None:
        """Take one sample."""
        sizes, counts = Counter[str](), Counter[str]()
        for key in self._marked():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if (role := self._sample_process(key)) is not None:
                    sizes[role] += _kilobytes(key[0], "smaps_rollup", "Pss")
                    counts[role] += 1
        for role, count in counts.items():
            use = self._roles[role]
            use.count, use.pss_bytes = max(use.count, count), max(use.pss_bytes, sizes[role])
        self.pss_bytes = max(self.pss_bytes, sum(sizes.values()))

    def _sample_process(self, key: tuple[int, str]) -> str | None:
        """Record a process's peak and processor time; returns its role, or None if it has ended."""
        fields = _stat(key[0])
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if fields[0] == "Z":  # has no command line any more
            self._seen[key] = (self._seen.get(key, ("ended before its first sample",))[0], seconds)
            return None
        own = Path(f"/proc/{key[0]}")
        role = role_of((own / "cmdline").read_bytes(), (own / "comm").read_text().strip())
        self._seen[key] = (role, seconds)
        self._roles[role].peak_bytes = max(self._roles[role].peak_bytes, _kilobytes(key[0], "status", "VmHWM"))
        return role

    def _marked(self) -> Iterator[tuple[int, str]]:
        """Yield process id and start time of each marked process."""
        for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
            with contextlib.suppress(OSError, IndexError):
                key = pid, _stat(pid)[19]
                if not self._known.get(key):  # a process that has just been forked has its parent's environment
                    self._known[key] = f"{MARK}={self._mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
                if self._known[key]:
                    yield key

    def _kill_rest(self) -> None:
        for _ in range(20):
            rest = [key for key in self._marked() if _stat_state(key[0]) != "Z"]
            if not rest:
                return
            for pid, _start in rest:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def report(self) -> dict[str, Any]:
        """Return the roles' use, with the processor time of all, as a result's line has it."""
        for role, use in self._roles.items():
            own = [seconds for name, seconds in self._seen.values() if name == role]
            use.started, use.processor_seconds = len(own), round(sum(own), 2)
        return {
            "pss_bytes": self.pss_bytes,
            "processor_seconds": round(sum(seconds for _, seconds in self._seen.values()), 2),
            "processes": {role: vars(use) for role, use in sorted(self._roles.items())},
        }


def role_of(command: bytes, name: str = "") -> str:
    """Return the role of a process; the program's name if it has none.

    Args:
        command: the content of /proc/PID/cmdline.
        name: the content of /proc/PID/comm. A fork of a fork server has that server's command line and its own name.
    """
    words = command.replace(b"\0", b" ").decode(errors="replace")
    if "fedquilt_common.process.fork_server" in words:
        forked = "worker" if " torch" in words else "agent"
        return "fork server" if name.startswith("python") else forked
    found = next((role for pattern, role in ROLES.items() if re.search(pattern, words)), None)
    return found or (Path(words.split(" ", 1)[0]).name or "unknown")


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; the first is the state, field 3 in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _stat_state(pid: int) -> str:
    try:
        return _stat(pid)[0]
    except (OSError, IndexError):
        return "Z"


def _kilobytes(pid: int, name: str, key: str) -> int:
    """Return a value of a file of /proc/PID, in bytes; 0 if it is not there."""
    lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    found = next((line for line in lines if line.startswith(f"{key}:")), f"{key}: 0 kB")
    return int(found.split()[1]) * 1024
