"""Keep child processes alive, as systemd does: restart a child that dies, and give up if it fails at each start."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedquilt_common.error_messages import last_error
from fedquilt_common.errors import BrokerUnreachableError, RunFailedError
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.process.exits import describe_exit
from fedquilt_server.simulate.child_process import ChildProcess, ChildSpec, spawn
from fedquilt_server.simulate.failed_starts import FailedStarts
from fedquilt_server.simulate.memory_samples import Memory, MemorySampler

STOP_SECONDS: Final = 5.0
HOST_STOP_SECONDS: Final = 60.0
"""How long the process that hosts agents on other machines may take to end them."""
SAMPLE_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05
_LAST_WORDS: Final = 8192
"""Bytes at the end of a log in which an error is searched."""


@dataclass
class _Child:
    spec: ChildSpec
    process: ChildProcess
    started: float
    log_start: int
    """Size of its log when this process was started: what precedes is of earlier processes, perhaps of earlier days."""
    failed_starts: FailedStarts = field(default_factory=FailedStarts)
    restarts: int = 0
    memory: Memory = field(default_factory=Memory)

    def serves(self, address: Path | None) -> bool:
        """Whether this is a fork server that runs and listens at an address."""
        listener = self.spec.listener
        return listener is not None and listener.getsockname() == str(address) and self.process.poll() is None


class Supervisor:
    """Starts child processes, restarts those that die, and stops all of them at the end of the ``with`` block.

    Args:
        pids_file: JSON file that always holds the current process ids.
        report: called with a sentence on each child that is restarted.
    """

    def __init__(self, pids_file: Path, report: Callable[[str], None] = lambda _: None) -> None:
        self._pids_file = pids_file
        self._report = report
        self._children: dict[str, _Child] = {}
        self._sampler = MemorySampler()
        self._sampled = 0.0

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *specs: ChildSpec) -> None:
        """Start child processes and record their process ids."""
        for spec in specs:
            log_start = _size(spec.log)
            self._children[spec.name] = _Child(spec, self._spawn(spec), time.monotonic(), log_start)
        self._write_pids()

    def _spawn(self, spec: ChildSpec) -> ChildProcess:
        return spawn(spec, lambda: any(child.serves(spec.fork_server) for child in self._children.values()))

    def memory(self) -> dict[str, Memory]:
        """Return the peak resident memory of each child so far, restarts included."""
        return {name: child.memory for name, child in self._children.items()}

    def restarts(self) -> dict[str, int]:
        """Return how often each child was restarted."""
        return {name: child.restarts for name, child in self._children.items()}

    def is_running(self, name: str) -> bool:
        """Whether a child was started and has not ended."""
        return name in self._children and self._children[name].process.poll() is None

    def wait(self, name: str, seconds: float, should_stop: Callable[[], bool]) -> None:
        """Wait until a child has ended, at most ``seconds``, or until ``should_stop`` returns True."""
        end = time.monotonic() + seconds
        while self.is_running(name) and time.monotonic() < end and not should_stop():
            time.sleep(_POLL_SECONDS)

    def watch(self) -> bool:
        """Check every child once and restart those that died.

        Returns:
            True once the coordinator has exited with code 0.

        Raises:
            RunFailedError: a child fails at each start, or with an exit code that a restart would only repeat.
        """
        if time.monotonic() - self._sampled >= SAMPLE_SECONDS:
            self.sample_memory()
        for child in list(self._children.values()):
            code = child.process.poll()
            if code is None:
                continue
            if child.spec.role == "coordinator" and code == 0:
                return True
            self._restart(child, code)
        return False

    def sample_memory(self) -> None:
        """Look at the memory of all children; ``watch`` does it now and then."""
        self._sampled = time.monotonic()
        running = {child.process.pid: child for child in self._children.values() if child.process.pid is not None}
        servers = {pid for pid, child in running.items() if child.spec.role == "fork server"}
        self._sampler.sample({pid: child.memory for pid, child in running.items()}, servers)

    def _restart(self, child: _Child, code: int) -> None:
        failed = child.failed_starts.add_end(code, time.monotonic() - child.started, _last_words(child))
        if code in child.spec.final_codes or child.failed_starts.are_too_many:
            if child.spec.listener is None:
                raise _failure(child.spec, code, child.log_start)
            self._do_without(child)
            return
        if failed:
            time.sleep(0.2)
        child.log_start = _size(child.spec.log)
        child.process, child.started = self._spawn(child.spec), time.monotonic()
        child.restarts += 1
        self._write_pids()
        self._report(f"{child.spec.name} {describe_exit(code)} and was restarted. Its log is {child.spec.log}")

    def _do_without(self, child: _Child) -> None:
        """Give up a fork server: a request to a closed socket fails, and who made it starts its process itself."""
        assert child.spec.listener is not None  # noqa: S101 - it is a fork server
        child.spec.listener.close()
        del self._children[child.spec.name]
        self._report(f"{child.spec.name} does not start; the processes share no memory. Its log is {child.spec.log}")

    def _write_pids(self) -> None:
        pids: dict[str, object] = {}
        groups: dict[str, dict[str, int | None]] = {"agent": {}, "fork server": {}}
        for child in self._children.values():
            if child.spec.role in groups:
                groups[child.spec.role][child.spec.name] = child.process.pid
            else:
                pids[child.spec.role] = child.process.pid
        pids["agents"] = groups["agent"]
        if groups["fork server"]:
            pids["fork_servers"] = groups["fork server"]
        write_atomically(self._pids_file, json.dumps(pids, indent=2) + "\n")

    def stop(self) -> None:
        """Stop all children, agents first and the broker last.

        Children that do not exit in time are killed. A second Ctrl-C kills all of them at once.
        """
        try:
            self._stop_in_order()
        except KeyboardInterrupt:
            for child in self._children.values():
                child.process.kill()
                child.process.wait()
            raise

    def _stop_in_order(self) -> None:
        for role in ("agent", "ray", "coordinator", "broker", "fork server"):
            group = [child.process for child in self._children.values() if child.spec.role == role]
            for process in group:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            for process in group:
                _wait_or_kill(process, HOST_STOP_SECONDS if role == "ray" else STOP_SECONDS)


def _wait_or_kill(process: ChildProcess, seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _last_words(child: _Child) -> str:
    """Return the error with which a process has ended; empty if its log has none, or was deleted."""
    if not child.spec.log.exists():
        return ""
    with child.spec.log.open("rb") as log:
        log.seek(max(child.log_start, _size(child.spec.log) - _LAST_WORDS))
        return last_error(log.read().decode(errors="replace").strip())


def _failure(spec: ChildSpec, code: int, log_start: int) -> RunFailedError:
    """Return the error of a child that is given up: the coordinator's own message, which is complete, or its log."""
    text = spec.log.read_bytes()[log_start:].decode(errors="replace").strip()
    tail = "\n".join(text.splitlines()[-15:])
    message = last_error(text) if spec.role == "coordinator" and code in spec.final_codes else ""
    error = RunFailedError(message or f"{spec.name} {describe_exit(code)}. The end of its log ({spec.log}):\n{tail}")
    if code in spec.final_codes | {BrokerUnreachableError.exit_code}:
        error.exit_code = code
    return error
