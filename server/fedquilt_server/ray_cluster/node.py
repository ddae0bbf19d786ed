"""What runs on a node of the Ray cluster: fork servers, and for each agent the process that is its actor.

These classes become Ray actors, so they run in processes of Ray. Nothing here needs more than the package.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from fedquilt_common.files.durable import create_private
from fedquilt_common.process.child import die_with_parent
from fedquilt_common.process.forked import FORK_SERVER, ForkedProcess

CA_FILE: Final = "ca.crt"
_SERVER_MODULE: Final = "fedquilt_common.process.fork_server"
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Ray sets them for its processes. Agents and their training processes set their own."""
_WAITING: Final = 1024
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 5.0
_TAIL_LINES: Final = 15
_PARENT_SECONDS: Final = 1.0


@dataclass(frozen=True)
class NodeHome:
    """What a node has prepared for agents.

    Attributes:
        folder: the node's folder for the run.
        agent_socket: path of the socket of the fork server for agents; empty: there is none.
        worker_socket: path of the socket of the fork server for training processes; empty: there is none.
    """

    folder: str
    agent_socket: str
    worker_socket: str


@dataclass(frozen=True)
class AgentOrder:
    """An agent to run on a node.

    Attributes:
        name: the agent's name.
        arguments: of ``fedquilt agent``, without the folder and the CA.
        state: folder of its state.
        log: file of its output.
        environment: variables to add to those of the node.
        ca: the CA of the broker in PEM; empty: those of the system.
        agent_socket: path of the socket of the fork server for agents; empty: it is started plainly.
        worker_socket: path of the socket of the fork server for training processes.
    """

    name: str
    arguments: Sequence[str]
    state: str
    log: str
    environment: Mapping[str, str] = field(repr=False)
    ca: str = ""
    agent_socket: str = ""
    worker_socket: str = ""


@dataclass(frozen=True)
class AgentEnd:
    """How an agent ended: its exit code, and the last lines that it wrote into its log."""

    code: int
    tail: tuple[str, ...]


def end_with_node(clean_up: Callable[[], None] = lambda: None) -> None:
    """End this process when Ray's own process on the node ends: Ray leaves its actors behind, and their agents."""
    threading.Thread(target=_watch_parent, args=(os.getppid(), clean_up), daemon=True).start()


def _watch_parent(parent: int, clean_up: Callable[[], None]) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    clean_up()
    os._exit(1)


class AgentActor:
    """Runs one agent as a process of its own; if the actor dies, the kernel or the fork server ends the process."""

    def __init__(self) -> None:
        end_with_node()
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._log, self._log_start = Path(), 0

    def start(self, order: AgentOrder) -> int | None:
        """Start the agent; returns its process id, None if its fork server has not answered yet.

        Raises:
            OSError: a folder of the node cannot be written.
        """
        state, self._log = Path(order.state), Path(order.log)
        for folder in (state, self._log.parent):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        arguments = [*order.arguments, "--state", str(state)]
        if order.ca:
            ca = create_private(state / CA_FILE)
            ca.write_text(order.ca, encoding="ascii")
            arguments += ["--ca", str(ca)]
        argv = (sys.executable, "-m", "fedquilt_common.cli", "agent", *arguments)
        with self._log.open("ab") as log:
            self._log_start = log.tell()  # what precedes is of earlier processes
            self._process = _fork(order, argv, log.fileno()) or _start(argv, _environment(order), log.fileno())
        return self._process.pid

    def wait(self) -> AgentEnd:
        """Wait until the agent ends."""
        assert self._process is not None  # noqa: S101 - it was started
        code = self._process.wait()
        text = self._log.read_bytes()[self._log_start :].decode(errors="replace").strip()
        return AgentEnd(code, tuple(text.splitlines()[-_TAIL_LINES:]))


def _environment(order: AgentOrder) -> dict[str, str]:
    forks = {FORK_SERVER: order.worker_socket} if order.worker_socket else {}
    return {**_node_environment(), **order.environment, **forks}


def _node_environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _THREADS}
    return {**inherited, "PYTHONUNBUFFERED": "1"}


def _fork(order: AgentOrder, argv: Sequence[str], log: int) -> ForkedProcess | None:
    """Start an agent as a fork; returns None if its fork server does not run or refuses."""
    if not order.agent_socket:
        return None
    try:
        with Path(os.devnull).open("rb") as nothing:
            process = ForkedProcess(
                order.agent_socket, argv, (nothing.fileno(), log, log), _environment(order), order.name, session=True
            )
    except OSError:
        return None
    if process.wait_started(_START_SECONDS):
        return process
    process.kill()
    return None


def _start(argv: Sequence[str], environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the command is our own
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


class NodeActor:
    """Prepares one node: it starts the fork servers that all agents of the node share, and cleans up at the end."""

    def __init__(self) -> None:
        end_with_node(lambda: self._remove(self._folder))
        self._servers: list[subprocess.Popen[bytes]] = []
        self._sockets: dict[str, str] = {}
        self._folder: Path | None = None
        self._home = Path()

    def start(self, home: str) -> NodeHome:
        """Start the fork servers.

        Args:
            home: name of this node's folder for the run, below that for temporary files.
        """
        self._home = Path(tempfile.gettempdir(), home)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # the folder for temporary files may be full: agents start plainly
                self._open()
        return NodeHome(str(self._home), self._sockets.get("agents", ""), self._sockets.get("workers", ""))

    def _open(self) -> None:
        from fedquilt_common.training_jobs import AGENT_MODULES, WORKER_MODULES, worker_environment  # agents need none

        self._folder = Path(tempfile.mkdtemp(prefix="fedquilt-ray-"))
        plain = _node_environment()
        for role, modules, environment in (
            ("workers", WORKER_MODULES, worker_environment(1, plain)),
            ("agents", AGENT_MODULES, plain),
        ):
            path = self._folder / role
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                listener.listen(_WAITING)
                self._servers.append(_start_server(listener, modules, environment, self._folder / f"{role}.log"))
            self._sockets[role] = str(path)

    def reach(self, host: str, port: int, seconds: float) -> str:
        """Return why this node cannot connect to an address; empty if it can."""
        try:
            socket.create_connection((host, port), timeout=seconds).close()
        except OSError as error:
            return str(error)
        return ""

    def close(self, *, remove: bool) -> None:
        """End the agents and the fork servers.

        Args:
            remove: whether to remove this node's folder for the run, too.
        """
        agents = [child for server in self._servers for child in _children(server.pid)]
        _, left = psutil.wait_procs(agents, _STOP_SECONDS)  # the end of its actor ends each agent in order
        _end(left)
        _end([psutil.Process(server.pid) for server in self._servers if server.poll() is None])
        for server in self._servers:
            server.wait()
        self._remove(self._folder)
        self._remove(self._home if remove else None)

    @staticmethod
    def _remove(folder: Path | None) -> None:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _start_server(
    listener: socket.socket, modules: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    argv = (sys.executable, "-m", _SERVER_MODULE, str(listener.fileno()), *modules)
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the command is our own
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
            pass_fds=(listener.fileno(),),
        )


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _end(processes: Sequence[psutil.Process]) -> None:
    """Terminate processes, and kill those that do not end in time."""
    for signal_ in ("terminate", "kill"):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                getattr(process, signal_)()
        _, processes = psutil.wait_procs(processes, _STOP_SECONDS)


def describe_node(wanted: Sequence[str], shared: str, mark: str) -> dict[str, Any]:
    """Return what a node reports of itself; see ``library.ask_nodes``, which sends this function's text along.

    Args:
        wanted: modules that agents import.
        shared: a folder that all nodes must see; empty: none.
        mark: name of a file in it.
    """
    import importlib.util
    import os
    import sys

    facts: dict[str, Any] = {"python": sys.executable, "missing": [], "writes": True, "sees": True}
    try:
        import fedquilt_common
        from fedquilt_common.wire.message_base import PROTOCOL

        facts["version"], facts["protocol"] = fedquilt_common.__version__, PROTOCOL
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    for name in wanted:
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            facts["missing"].append(name)
    if shared:
        facts["sees"] = os.path.exists(os.path.join(shared, mark))  # noqa: PTH110, PTH118 - the node may have nothing
        facts["writes"] = os.access(shared, os.W_OK)
    return facts
