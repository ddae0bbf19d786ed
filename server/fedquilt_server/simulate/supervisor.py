"""Child processes kept alive as systemd would: a child that dies is started again, until it dies at once each time."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psutil

from fedquilt_common.errors import BrokerUnreachableError, RunFailedError
from fedquilt_common.files.durable import write_atomically

Role = Literal["broker", "coordinator", "agent"]
SHORT_LIFE: Final = 30.0
"""A child that ends by itself after fewer seconds has failed to start; one that was killed has not."""
FAILED_STARTS: Final = 4
STOP_SECONDS: Final = 5.0
KILLED: Final = frozenset({0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT})
"""Ends that come from outside: the next start is as good as the first."""
FINAL_CODES: Final = frozenset({2, 4, 5, 6, 7})
"""Exit codes that another start would give again: see README.md."""


@dataclass(frozen=True)
class ChildSpec:
    """A process to keep alive; ``log`` receives what it prints."""

    name: str
    role: Role
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] | None = None


@dataclass
class Memory:
    """Bytes of resident memory at its highest; ``workers`` is that of the largest training process."""

    peak: int = 0
    workers: int = 0


@dataclass
class _Child:
    spec: ChildSpec
    process: subprocess.Popen[bytes]
    started: float
    failed_starts: int = 0
    memory: Memory = field(default_factory=Memory)


class Supervisor:
    """Starts children, restarts those that die, keeps ``pids_file`` current, and ends all of them on leaving.

    Raises (from ``watch``):
        RunFailedError: when a child cannot be started, or fails in a way that a restart does not mend.
    """

    def __init__(self, pids_file: Path) -> None:
        self._pids_file = pids_file
        self._children: dict[str, _Child] = {}

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, spec: ChildSpec) -> None:
        """Start one child."""
        self._children[spec.name] = _Child(spec, _spawn(spec), time.monotonic())
        self._write_pids()

    def memory(self) -> dict[str, Memory]:
        """The highest resident memory of each child so far, restarts included."""
        return {name: child.memory for name, child in self._children.items()}

    def watch(self) -> bool:
        """Look at every child once, restart the dead; True once the coordinator has ended well."""
        for child in self._children.values():
            code = child.process.poll()
            if code is None:
                _sample(child)
            elif child.spec.role == "coordinator" and code == 0:
                return True
            else:
                self._revive(child, code)
        return False

    def _revive(self, child: _Child, code: int) -> None:
        failed = code not in KILLED and time.monotonic() - child.started < SHORT_LIFE
        child.failed_starts = child.failed_starts + 1 if failed else 0
        if code in FINAL_CODES or child.failed_starts >= FAILED_STARTS:
            raise _failure(child.spec, code)
        if failed:
            time.sleep(0.2)
        child.process, child.started = _spawn(child.spec), time.monotonic()
        self._write_pids()

    def _write_pids(self) -> None:
        pids: dict[str, object] = {"agents": {}}
        agents: dict[str, int] = {}
        for child in self._children.values():
            if child.spec.role == "agent":
                agents[child.spec.name] = child.process.pid
            else:
                pids[child.spec.role] = child.process.pid
        write_atomically(self._pids_file, json.dumps({**pids, "agents": agents}, indent=2) + "\n")

    def stop(self) -> None:
        """End all children: agents first, the broker last, by force if they do not go, or at a second Ctrl-C."""
        try:
            self._stop_in_order()
        except KeyboardInterrupt:
            for child in self._children.values():
                child.process.kill()
                child.process.wait()
            raise

    def _stop_in_order(self) -> None:
        for role in ("agent", "coordinator", "broker"):
            group = [child.process for child in self._children.values() if child.spec.role == role]
            for process in group:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            for process in group:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spawn(spec: ChildSpec) -> subprocess.Popen[bytes]:
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    with spec.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own programs
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(spec.env) if spec.env is not None else None,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:  # pragma: no cover - runs in the child
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _failure(spec: ChildSpec, code: int) -> RunFailedError:
    tail = spec.log.read_text(errors="replace").strip().splitlines()[-15:]
    error = RunFailedError(
        f"{spec.name} ended with exit code {code}. The end of its log ({spec.log}):\n" + "\n".join(tail)
    )
    if code in FINAL_CODES | {BrokerUnreachableError.exit_code}:
        error.exit_code = code
    return error


def _sample(child: _Child) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        child.memory.peak = max(child.memory.peak, _highest(child.process.pid))
        if child.spec.role == "agent":
            workers = psutil.Process(child.process.pid).children()
            child.memory.workers = max([child.memory.workers, *(_highest(w.pid) for w in workers)])


def _highest(pid: int) -> int:
    """Resident memory at its highest in bytes where Linux tells, else as it is now."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process(pid).memory_info().rss)
