"""The fork servers of a simulation: one starts the agents, one their training processes.

Agents on one machine then share what they have imported, and so do their training processes. docs/adr/0043 has the
reasons. On a system other than Linux, and where a server cannot start, each process loads its modules itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedquilt_common.process.forked import FORK_SERVER
from fedquilt_common.training_jobs import AGENT_MODULES, PRIVATE_MODULE, WORKER_MODULES, worker_environment
from fedquilt_server.simulate.child_process import ChildSpec
from fedquilt_server.simulate.plan import SimulationPlan
from fedquilt_server.status.run_file_names import LOGS

_MODULE: Final = "fedquilt_common.process.fork_server"
_WAITING: Final = 1024
"""Requests that wait while a server loads its modules."""


@dataclass(frozen=True)
class ForkServers:
    """The servers to start, and where they listen; all empty where each process is started by itself.

    Attributes:
        specs: the servers to start.
        agent_socket: path of the socket of the server that starts agents.
        agent_environment: variables of an agent whose training processes are forked.
    """

    specs: tuple[ChildSpec, ...] = ()
    agent_socket: Path | None = None
    agent_environment: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def open_fork_servers(plan: SimulationPlan, report: Callable[[str], None]) -> Iterator[ForkServers]:
    """Open the sockets of the servers, in a folder that only this user can enter, until the block ends.

    The sockets stay open while a server restarts, so a request of that time waits for it.

    Args:
        plan: what to simulate.
        report: called with a sentence if the sockets cannot be opened.
    """
    if not plan.forks or plan.hosts is not None or sys.platform != "linux":
        yield ForkServers()
        return
    with contextlib.ExitStack() as stack:
        try:
            servers = _open(plan, stack)
        except OSError as error:  # the folder for temporary files may be full, or have too long a name for a socket
            report(f"Agents and training processes are started one by one: {tempfile.gettempdir()}: {error}")
            servers = ForkServers()
        yield servers


def _open(plan: SimulationPlan, stack: contextlib.ExitStack) -> ForkServers:
    folder, logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedquilt-"))), plan.folder / LOGS
    agents, workers = (stack.enter_context(_listen(folder / name)) for name in ("agents", "workers"))
    specs = (
        _server_spec("fork-workers", workers, _worker_modules(plan), worker_environment(1, plan.environment), logs),
        _server_spec("fork-agents", agents, AGENT_MODULES, plan.environment, logs),
    )
    return ForkServers(specs, folder / "agents", {FORK_SERVER: str(folder / "workers")})


def _worker_modules(plan: SimulationPlan) -> tuple[str, ...]:
    private = plan.experiment.is_private and importlib.util.find_spec("opacus") is not None
    return (*WORKER_MODULES, PRIVATE_MODULE) if private else WORKER_MODULES


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    listener.listen(_WAITING)
    return listener


def _server_spec(
    name: str, listener: socket.socket, modules: tuple[str, ...], environment: Mapping[str, str], logs: Path
) -> ChildSpec:
    argv = (sys.executable, "-m", _MODULE, str(listener.fileno()), *modules)
    return ChildSpec(name, "fork server", argv, logs / f"{name}.log", environment, listener)
