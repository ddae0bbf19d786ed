"""How each class of faults is injected into the processes of a scenario."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.soak import disk, namespace, network
from tests.soak.federation import POLL, Federation, parent_of, send
from tests.soak.scenario import Fault

STOPPED: Final = frozenset({-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM})
"""Exit codes of a command that a fault has stopped from outside."""
NO_BROKER: Final = frozenset({3})
NO_DISK: Final = frozenset({6, 7})
"""7: clients failed, and nobody asks them again in this run."""
TRACE: Final = "strace"
NO_MOUNT: Final = "a small disk needs root and the right to mount"
NO_NAMESPACE: Final = "a network namespace needs root, and the program ip: apt-get install iproute2"
TRACER_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Injection:
    """What a fault did.

    Attributes:
        fault: the fault.
        done: whether it happened; it does not if the run ends before, or its target never does what it waits for.
        skipped: why this machine cannot do it; empty if it can.
        damaged: files that it changed.
        problem: what it has found wrong itself.
    """

    fault: Fault
    done: bool = True
    skipped: str = ""
    damaged: tuple[str, ...] = ()
    problem: str = ""


def excuses(fault: Fault) -> frozenset[int]:
    """Return the exit codes with which the command may end once the fault has begun; it then runs again."""
    if fault.target == "simulate" or fault.kind in ("damage", "read-only"):
        return STOPPED
    if fault.kind in (*network.INJECTORS, "partition"):
        return NO_BROKER
    return NO_DISK if fault.kind in ("fill", "error") else frozenset()


def kill(federation: Federation, fault: Fault) -> Injection:
    """Kill a process with SIGKILL."""
    return _signal(federation, fault, signal.SIGKILL)


def terminate(federation: Federation, fault: Fault) -> Injection:
    """Ask a process to end, as systemd does."""
    return _signal(federation, fault, signal.SIGTERM)


def _signal(federation: Federation, fault: Fault, number: signal.Signals) -> Injection:
    pid = federation.find(fault.target, fault.number)
    return Injection(fault, pid is not None and send(pid, number))


def stop(federation: Federation, fault: Fault) -> Injection:
    """Freeze a process for some seconds."""
    pid = federation.find(fault.target, fault.number)
    if pid is None or not send(pid, signal.SIGSTOP):
        return Injection(fault, done=False)
    try:
        time.sleep(fault.seconds)
    finally:
        send(pid, signal.SIGCONT)
    return Injection(fault)


def syscall(federation: Federation, fault: Fault) -> Injection:
    """Kill a process at its Nth system call of one kind, before the call takes effect."""
    if reason := why_no_trace():
        return Injection(fault, done=False, skipped=reason)
    pid = federation.find(fault.target, fault.number)
    if pid is None:
        return Injection(fault, done=False)
    with tracing(pid, f"{fault.detail}:signal=KILL:when={fault.number}"):
        done = _wait_dead(pid, fault.seconds)
    return Injection(fault, done)


def error(federation: Federation, fault: Fault) -> Injection:
    """Let a process's system calls of one kind fail for some seconds."""
    if reason := why_no_trace():
        return Injection(fault, done=False, skipped=reason)
    pid = federation.find(fault.target, fault.number)
    if pid is None:
        return Injection(fault, done=False)
    with tracing(pid, f"{fault.detail}:when={fault.number % 10 + 1}+"):
        _wait_dead(pid, fault.seconds)
    return Injection(fault)


def fill(federation: Federation, fault: Fault) -> Injection:
    """Fill the disk for some seconds."""
    if not federation.run.is_mount():
        return Injection(fault, done=False, skipped=NO_MOUNT)
    disk.fill(federation, fault)
    return Injection(fault)


def read_only(federation: Federation, fault: Fault) -> Injection:
    """Run the command again while the disk is read only."""
    if not federation.run.is_mount():
        return Injection(fault, done=False, skipped=NO_MOUNT)
    try:
        return Injection(fault, problem=disk.make_read_only(federation))
    except subprocess.CalledProcessError as busy:
        return Injection(fault, done=False, skipped=f"the disk stayed busy: {busy}")


def damage(federation: Federation, fault: Fault) -> Injection:
    """Damage a file while nothing runs."""
    name = disk.damage(federation, fault)
    return Injection(fault, name is not None, damaged=(name,) if name else ())


def partition(federation: Federation, fault: Fault) -> Injection:
    """Lose all packets for some seconds."""
    if federation.namespace is None:
        return Injection(fault, done=False, skipped=NO_NAMESPACE)
    with namespace.partitioned(federation.namespace):
        time.sleep(fault.seconds)
    return Injection(fault)


@contextlib.contextmanager
def tracing(pid: int, injection: str) -> Iterator[None]:
    """Inject a fault into the system calls of a process and all its threads, until the end of the block."""
    call = injection.partition(":")[0]
    argv = [TRACE, "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={injection}", "-p", str(pid)]
    tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        _end_tracer(tracer)


def _end_tracer(tracer: subprocess.Popen[bytes]) -> None:
    """End strace, which lets go of its process. It sometimes waits for ever if the process has died meanwhile."""
    tracer.terminate()
    try:
        tracer.wait(TRACER_SECONDS)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait()


def why_no_trace() -> str:
    """Return why no system calls can be traced here; empty if they can."""
    if shutil.which(TRACE) is None:
        return "strace is not installed: apt-get install strace"
    done = subprocess.run([TRACE, "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def _wait_dead(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while parent_of(pid) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(POLL)
    return True


INJECTORS: Final[Mapping[str, Callable[[Federation, Fault], Injection]]] = {
    "kill": kill,
    "stop": stop,
    "terminate": terminate,
    "syscall": syscall,
    "error": error,
    "fill": fill,
    "read-only": read_only,
    "damage": damage,
    "partition": partition,
}
