"""The process of one run: ``fedquilt simulate``, or ``fedquilt coordinator`` for boards on a broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fedquilt_common.error_messages import last_error
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.process.child import die_with_parent
from fedquilt_common.process.exits import describe_exit
from fedquilt_common.process.python_path import python_path_variable
from fedquilt_common.process.signals import STOPPED_CODES
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress
from fedquilt_server.runs.run_folder import claim_folder
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.simulate.status_poll import StatusPoll
from fedquilt_server.status.run_file_names import EXPERIMENT, LOGS
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.sweep.manifest import SweptStatus
from fedquilt_server.sweep.plan import PlannedRun, is_finished

STOP_SECONDS: Final = 20.0
"""How long a run may take to stop: its broker, coordinator and agents may take 5 s each."""
_LONGEST_TAIL: Final = 16 * 1024
_STOPPED_EARLY: Final = "the run was stopped before its end; run the same command again to resume"


@dataclass(frozen=True)
class BoardsBroker:
    """The broker that the boards of every run use.

    Args:
        address: its address, with certificates and password.
        federation: name space at the broker.
        inventory: the inventory that assigns clients to boards; None: that of the certificate's federation.
    """

    address: BrokerAddress
    federation: str = "default"
    inventory: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Command-line options of the coordinator; the password is not among them, because every user can read it."""
        files = {"--ca": self.address.ca, "--cert": self.address.cert, "--key": self.address.key}
        given = {name: value for name, value in files.items() if value}
        if self.inventory is not None:
            given["--inventory"] = str(self.inventory)
        pairs = {"--broker": self.address.without_password(), "--federation": self.federation, **given}
        return tuple(text for pair in pairs.items() for text in pair)


@dataclass(frozen=True)
class RunHost:
    """Where the runs of a sweep take place.

    Args:
        boards: the broker of the boards; None: each run is simulated, with a broker of its own.
        port: port of the status page of each run; 0 chooses free ones.
        python_path: folders with a user's packages, searched before PYTHONPATH.
    """

    boards: BoardsBroker | None = None
    port: int = 0
    python_path: tuple[str, ...] = ()

    def command(self, folder: Path, port: int) -> tuple[str, ...]:
        """Return the command that runs, or resumes, the experiment in a folder."""
        name, options = ("simulate", ()) if self.boards is None else ("coordinator", (*self.boards.options, "--resume"))
        words = (name, str(folder / EXPERIMENT), "--out", str(folder), "--port", str(port), *options)
        return (sys.executable, "-m", "fedquilt_common.cli", *words)

    def environment(self) -> Mapping[str, str]:
        """Return the environment of the command."""
        password = self.boards.address.password if self.boards else ""
        return {
            **os.environ,
            **python_path_variable(self.python_path),
            **({BROKER_PASSWORD: password} if password else {}),
        }


@dataclass(frozen=True)
class RunEnd:
    """How the process of a run ended."""

    status: SweptStatus
    reason: str
    exit_code: int


class RunProcess:
    """Runs one experiment of a sweep in a process of its own, which ends with this process.

    It has a session of its own, so that a terminal's Ctrl-C reaches only the sweep, which stops its runs in order.

    Args:
        run: the run to start or resume.
        host: where it takes place.

    Raises:
        RunFolderError: the folder holds no run but other files.
        FolderInUseError: the folder is a file.
        OSError: the folder cannot be written.
    """

    def __init__(self, run: PlannedRun, host: RunHost) -> None:
        self.run = run
        self.port = host.port or free_port()
        self.snapshot: Snapshot | None = None
        claim_folder(run.folder)
        self._log = run.folder / LOGS / "sweep.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(run.folder / EXPERIMENT, dump_experiment(run.experiment))
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is our own
                host.command(run.folder, self.port),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=dict(host.environment()),
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        self._poll = StatusPoll(self.page_url)

    @property
    def page_url(self) -> str:
        """Address of the run's status page."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def refresh(self) -> Snapshot | None:
        """Return the newest snapshot of the run; None before there is one."""
        self.snapshot = self._poll.fetch() or self.snapshot
        return self.snapshot

    def poll(self) -> RunEnd | None:
        """Return how the process ended; None while it runs."""
        code = self._process.poll()
        return None if code is None else self._end(code)

    def terminate(self) -> None:
        """Stop the run in order; it can be resumed."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> RunEnd:
        """Wait until the process has ended, and kill it after ``seconds``."""
        try:
            code = self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            code = self.kill()
        return self._end(code)

    def kill(self) -> int:
        """Kill the process at once; the kernel then ends its children. Returns its exit code."""
        self._process.kill()
        return self._process.wait()

    def _end(self, code: int) -> RunEnd:
        self._poll.close()
        if code == 0:
            done = is_finished(self.run.folder)  # a run that a person stops on its page ends with 0, too
            return RunEnd("finished", "", code) if done else RunEnd("stopped", _STOPPED_EARLY, code)
        status: SweptStatus = "stopped" if code in STOPPED_CODES else "failed"
        return RunEnd(status, self._message(code), code)

    def _message(self, code: int) -> str:
        """Return the error that the command printed, or else how it ended."""
        with self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - _LONGEST_TAIL))
            text = file.read().decode(errors="replace").strip()
        if message := last_error(text):
            return message
        last = text.splitlines()[-1:] if code > 0 else []
        return ". ".join([f"the command {describe_exit(code)}", *last])
