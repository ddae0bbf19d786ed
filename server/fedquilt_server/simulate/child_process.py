"""How a simulation starts a process: as a child of its own, or as a fork of a process that has loaded its modules."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal

from fedquilt_common.process.child import die_with_parent
from fedquilt_common.process.forked import ForkedProcess

Role = Literal["broker", "coordinator", "agent", "ray", "fork server"]
ChildProcess = subprocess.Popen[bytes] | ForkedProcess
FORK_SECONDS: Final = 120.0
"""How long a fork server may take to load its modules and to start a process."""

FINAL_CODES: Final = frozenset({2, 4, 5, 6, 7, 13})
"""Exit codes of `fedquilt` that another start would only repeat; see docs/reference/exit-codes.md."""

_STEP_SECONDS: Final = 0.1


@dataclass(frozen=True)
class ChildSpec:
    """A process to keep alive.

    Attributes:
        log: receives its standard output and standard error.
        env: its whole environment; None: that of this process.
        listener: the socket that a fork server inherits.
        fork_server: path of the socket of the fork server that starts it; None: this process starts it.
        group: the control group that it enters before its program begins; None: that of this process.
        folder: its working directory; None: that of this process.
        final_codes: exit codes that another start would only repeat: they end the run.
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] | None = None
    listener: socket.socket | None = None
    fork_server: Path | None = None
    group: Path | None = None
    folder: Path | None = None
    final_codes: frozenset[int] = FINAL_CODES


def spawn(spec: ChildSpec, is_served: Callable[[], bool] = lambda: True) -> ChildProcess:
    """Start a child in a session of its own: a terminal's signals reach the supervisor, which stops it in order.

    A child that its fork server does not start is started by this process.

    Args:
        spec: the child.
        is_served: returns whether its fork server runs; while it does, its answer is awaited.
    """
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    with spec.log.open("ab") as log:
        return _fork(spec, log, is_served) or _start(spec, log)


def _fork(spec: ChildSpec, log: IO[bytes], is_served: Callable[[], bool]) -> ForkedProcess | None:
    if spec.fork_server is None or not is_served():
        return None
    environment = dict(os.environ if spec.env is None else spec.env)
    try:
        with Path(os.devnull).open("rb") as nothing:
            descriptors = nothing.fileno(), log.fileno(), log.fileno()
            address = str(spec.fork_server)
            process = ForkedProcess(address, spec.argv, descriptors, environment, spec.name, session=True)
    except OSError:
        return None
    end = time.monotonic() + FORK_SECONDS
    while not process.wait_started(_STEP_SECONDS):
        if process.poll() is not None or time.monotonic() > end or not is_served():
            process.kill()
            return None
    return process


def _start(spec: ChildSpec, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the commands are our own
        spec.argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(spec.env) if spec.env is not None else None,
        cwd=spec.folder,
        start_new_session=True,
        preexec_fn=partial(_prepare, os.getpid(), spec.group),
        pass_fds=() if spec.listener is None else (spec.listener.fileno(),),
    )


def _prepare(parent: int, group: Path | None) -> None:  # pragma: no cover - runs in the child
    die_with_parent(parent)
    if group is not None:
        (group / "cgroup.procs").write_text("0")  # 0 is the process that writes
