"""Run a federation's broker in the foreground, and make a running broker use new files."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from fedquilt_common.errors import BrokerFailedError, FederationError
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.process.child import die_with_parent
from fedquilt_common.wire.mosquitto_version import Version, can_reload, name_version, parse_version
from fedquilt_server.provisioning.broker_files import CONFIG
from fedquilt_server.provisioning.record import FederationRecord

SUPERVISOR: Final = "supervisor.pid"
"""File in the broker's folder with the process id of ``fedquilt federation broker``."""
COMMAND_SECONDS: Final = 600.0
RESTART_SECONDS: Final = 60.0
"""Seconds for a broker to write its database, end and listen again."""
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_SIGNALS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})


@dataclass(frozen=True)
class RunningBroker:
    """A Mosquitto that runs with the configuration of a federation's folder.

    Attributes:
        pid: its process.
        version: its version; None if unknown.
        supervisor: process of the ``fedquilt federation broker`` that started it; None if another program did.
    """

    pid: int
    version: Version | None
    supervisor: int | None

    @property
    def name(self) -> str:
        """A name for messages, such as ``The broker (Mosquitto 2.0.11, process 41)``."""
        return f"The broker ({name_version(self.version)}, {self.process})"

    @property
    def process(self) -> str:
        """The process to which the owner sends signals: Mosquitto itself may not survive a SIGHUP."""
        if self.supervisor is None:
            return f"process {self.pid}"
        return f"process {self.supervisor} of `fedquilt federation broker`"


def program_version(program: str) -> Version | None:
    """Return the version that ``program -h`` prints; None if it prints none or does not run."""
    try:
        done = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - a Mosquitto that we found or that runs
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stdout)


def find_running_broker(folder: Path) -> RunningBroker | None:
    """Find the Mosquitto that runs with the configuration in ``folder``; None without one."""
    process = _find_process(folder)
    if process is None:
        return None
    parent = process.info["ppid"]
    version = program_version(process.info["exe"]) if process.info["exe"] else None
    return RunningBroker(process.pid, version, parent if parent == _read_supervisor(folder) else None)


def is_listening(folder: Path, port: int) -> bool:
    """Return whether the broker with the configuration in ``folder`` listens on ``port``.

    It asks the operating system: each test connection without TLS would leave an error in the broker's log.
    """
    process = _find_process(folder)
    try:
        found = [] if process is None else process.net_connections("tcp")
    except psutil.Error:  # it has ended meanwhile
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


def _find_process(folder: Path) -> psutil.Process | None:
    """Return the Mosquitto that runs with the configuration in ``folder``, with some of its attributes in ``info``."""
    config = (folder / CONFIG).resolve()
    for process in psutil.process_iter(["name"]):
        if "mosquitto" in (process.info["name"] or ""):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                process.info = process.as_dict(["cmdline", "cwd", "exe", "ppid"])
                if _names_file(process.info, config):
                    return process
    return None


def _names_file(process: Mapping[str, Any], path: Path) -> bool:
    """Whether an argument of a process is this resolved path, however it is spelled."""
    words = (Path(process["cwd"] or "/", word) for word in process["cmdline"] or [])
    return any(word.name == path.name and word.resolve() == path for word in words)


def _read_supervisor(folder: Path) -> int | None:
    try:
        return int((folder / SUPERVISOR).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def reload_broker(folder: Path, record: FederationRecord, *, restart: bool = False) -> str:
    """Make the broker use its new files: reload it if its version allows that, or restart it.

    Args:
        folder: the broker's folder.
        record: the federation; its ``reload`` command is run if it has one.
        restart: restart the broker in any case, because a reload does not read all of the new files.

    Returns:
        What was done, or what the user must do: a sentence without its full stop.

    Raises:
        FederationError: the command failed, or the user must restart the broker.
    """
    if record.reload:
        return _run_reload_command(record.reload)
    with lock_folder(folder, RESTART_SECONDS, ".restart"):  # during a restart there is no broker to find
        return _reload_or_restart(folder, record.port, restart)


def _reload_or_restart(folder: Path, port: int, restart: bool) -> str:
    broker = find_running_broker(folder)
    if broker is None:
        return (
            f"No broker runs from {folder}. `fedquilt federation broker` reads the new files when it starts; for any "
            "other broker, copy acl and revoked.crl from there to its folder, and restart it"
        )
    if can_reload(broker.version) and not restart:
        _send_hangup(broker.pid)
        return f"{broker.name} reloads its files"
    if broker.supervisor is None:
        raise FederationError(
            f"the files are written, but the broker ({name_version(broker.version)}, {broker.process}) does not use "
            "them: `fedquilt federation broker` did not start it. Restart it; a reload is safe since Mosquitto 2.1 only"
        )
    _send_hangup(broker.supervisor)
    _wait_for_restart(broker.pid, folder, port)
    return f"{broker.name} was restarted"


def _send_hangup(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        raise FederationError(
            f"the files are written, but the broker belongs to another user: run sudo kill -HUP {pid}"
        ) from None


def _wait_for_restart(old: int, folder: Path, port: int) -> None:
    """Wait until the process ``old`` has ended and its successor listens on ``port``."""
    end = time.monotonic() + RESTART_SECONDS
    while psutil.pid_exists(old) or not is_listening(folder, port):
        if time.monotonic() > end:
            raise FederationError(
                "the files are written, but the broker has not come back: look at the terminal of "
                "`fedquilt federation broker`, and restart that command"
            )
        time.sleep(_POLL_SECONDS)


def _run_reload_command(command: str) -> str:
    try:
        words = shlex.split(command)
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)  # noqa: S603 - the federation's owner chose the command
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise FederationError(f"the files are written, but `{command}` did not reload the broker: {error}") from None
    if done.returncode:
        raise FederationError(
            f"the files are written, but `{command}` did not reload the broker. It ended with exit code "
            f"{done.returncode}: {done.stderr.strip()[-500:]}"
        )
    return f"`{command}` succeeded"


def check_port(port: int) -> None:
    """Check that a broker can listen on a port: Mosquitto's own message does not name it.

    Raises:
        BrokerFailedError: another program listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Mosquitto does
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BrokerFailedError(
                    f"the broker cannot start: another program listens on port {port}. Find it with "
                    f"`sudo ss -ltnp sport = :{port}`, and stop it"
                ) from None


def run_broker(command: Sequence[str], folder: Path) -> int:
    """Run a broker: SIGHUP restarts it, SIGINT and SIGTERM end it.

    Args:
        command: Mosquitto and its arguments.
        folder: the broker's folder. It holds the file ``SUPERVISOR`` while it runs.

    Returns:
        The number of the signal that ended it.

    Raises:
        BrokerFailedError: the broker ended by itself.
    """
    pid_file = folder / SUPERVISOR
    pid_file.write_text(str(os.getpid()), encoding="ascii")
    try:
        with _blocked_signals():
            return _supervise(command)
    finally:
        pid_file.unlink(missing_ok=True)


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Keep signals pending for ``sigwait``, so that none is lost between two steps."""
    # A system may drop a blocked SIGCHLD whose action is to ignore it, the default.
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, before)


def _supervise(command: Sequence[str]) -> int:
    child = _start(command)
    try:
        while (received := signal.sigwait(_SIGNALS)) not in (signal.SIGINT, signal.SIGTERM):
            if received == signal.SIGHUP:
                _stop(child)
                child = _start(command)
            elif (code := child.poll()) is not None:
                raise BrokerFailedError(f"the broker ended with code {code}: see its messages above")
        return received
    finally:
        _stop(child)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a session of its own: the SIGHUP of a closed terminal would make Mosquitto reload.
    return subprocess.Popen(command, preexec_fn=partial(_prepare_child, os.getpid()), start_new_session=True)  # noqa: S603 - our own Mosquitto


def _prepare_child(parent: int) -> None:  # pragma: no cover - runs in the child
    die_with_parent(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
