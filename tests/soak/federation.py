"""The processes of a scenario: ``fedquilt simulate`` as a user starts it, and what it has started."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psutil
import yaml
from tests.soak.namespace import prefix
from tests.support.runs import workers_of

from fedquilt_common.experiment_file import make_experiment
from fedquilt_server.runs.begun_mark import mark_path
from fedquilt_server.simulate.plan import SimulationPlan

MARK: Final = "FEDQUILT_SOAK"
"""Environment variable by which a scenario finds all of its processes, also orphans."""
POLL: Final = 0.01
GONE_SECONDS: Final = 20.0
FIND_SECONDS: Final = 8.0


class Federation:
    """The command of one scenario, which can run again, and its processes.

    Args:
        folder: holds the experiment, the run folder and the output of each start of the command.
        experiment: the content of the experiment file.
        broker: URL of a broker; None lets the command start one.
        namespace: network namespace of all processes; None for this machine's.
    """

    def __init__(
        self, folder: Path, experiment: dict[str, object], broker: str | None = None, namespace: str | None = None
    ) -> None:
        self.namespace = namespace
        self.folder, self.run = folder, folder / "run"
        self.paused = threading.RLock()
        """Held while a fault needs the command to stay away."""
        self.over = threading.Event()
        """Set when the command does not run again."""
        self.starts = 0
        self._mark = secrets.token_hex(8)
        self._broker = ["--broker", broker] if broker else []
        folder.mkdir(parents=True, exist_ok=True)
        self._experiment = make_experiment(experiment, "experiment", [])
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))

    @property
    def name(self) -> str:
        """The federation's name space at the broker."""
        return SimulationPlan(self._experiment, self.run, 0, None, 0).federation

    def start(self) -> None:
        """Start the command; a second time it resumes the run."""
        self.starts += 1
        argv = [
            *prefix(self.namespace),
            sys.executable,
            "-m",
            "fedquilt_common.cli",
            "simulate",
            str(self.folder / "experiment.yaml"),
        ]
        with (
            (self.folder / f"command-{self.starts}.out").open("wb") as out,
            (self.folder / f"command-{self.starts}.err").open("wb") as err,
        ):
            self.command = subprocess.Popen(
                [*argv, "--out", str(self.run), "--json", *self._broker],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env={**os.environ, MARK: self._mark, "FEDQUILT_VALIDATE": "1"},
            )  # fmt: skip

    def wait(self, seconds: float) -> int | None:
        """Wait until the command has ended; returns its exit code, or None if it still runs."""
        try:
            return self.command.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None

    def message(self) -> str:
        """The standard error of the command's last start."""
        return (self.folder / f"command-{self.starts}.err").read_text(errors="replace")

    # -- its processes ------------------------------------------------------------------------

    def find(self, target: str, number: int = 1) -> int | None:
        """Return the process id of a target, or None if there is none within some seconds.

        Args:
            target: ``simulate``, ``broker``, ``coordinator``, ``agent`` or ``worker``.
            number: which of several.
        """
        end = time.monotonic() + FIND_SECONDS
        while time.monotonic() < end and not self.over.is_set():
            found = self._processes(target)
            if found:
                return found[number % len(found)]
            time.sleep(POLL)
        return None

    def _processes(self, target: str) -> list[int]:
        if target == "simulate":
            return [self.command.pid]
        children = self._children()
        if target == "worker":
            return [worker for agent in children.get("agent", []) for worker in workers_of(agent)]
        return children.get(target, [])

    def _children(self) -> dict[str, list[int]]:
        """The command's present children by role; empty while the file is not there or of an earlier start."""
        try:
            pids = json.loads((self.run / "pids.json").read_text())
        except (OSError, ValueError):
            return {}
        roles = {role: [pids[role]] for role in ("broker", "coordinator") if role in pids}
        roles["agent"] = [pids["agents"][name] for name in sorted(pids["agents"])]
        roles["fork server"] = list(pids.get("fork_servers", {}).values())
        parents = {self.command.pid, *roles["fork server"]}
        return {role: [pid for pid in found if parent_of(pid) in parents] for role, found in roles.items()}

    def survivors(self) -> list[int]:
        """All processes that any start of the command has left."""
        return [pid for pid in psutil.pids() if _is_marked(pid, f"{MARK}={self._mark}".encode())]

    def wait_gone(self, seconds: float = GONE_SECONDS) -> list[int]:
        """Wait until no process is left; returns those that are."""
        end = time.monotonic() + seconds
        while (left := self.survivors()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def destroy(self) -> None:
        """Kill whatever is left, and wait until it is gone."""
        for pid in self.survivors():
            send(pid, signal.SIGKILL)
        self.command.wait()
        self.wait_gone()

    # -- its journal --------------------------------------------------------------------------

    def replies(self) -> int:
        """The number of replies in the journal; 0 if it cannot be read now."""
        return len(self.query("SELECT seq FROM events WHERE kind = 'Replied'"))

    def run_id(self) -> str | None:
        """The run's identifier; None until the run has begun. A run that has not begun may start over."""
        if not mark_path(self.run).exists():
            return None
        rows = self.query("SELECT value FROM meta WHERE key = 'run'")
        return str(rows[0][0]) if rows else None

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are in the journal; no process reads the run folder again then."""
        return bool(self.query("SELECT value FROM meta WHERE key = 'finished'"))

    def query(self, statement: str) -> list[tuple[object, ...]]:
        """Return rows of the journal, none if it cannot be read."""
        try:
            with closing(sqlite3.connect(f"file:{self.run / 'journal.sqlite'}?mode=ro", uri=True, timeout=1)) as db:
                return db.execute(statement).fetchall()
        except sqlite3.Error:
            return []

    def wait_until(self, done: Callable[[], bool], give_up: Callable[[], bool]) -> bool:
        """Wait until ``done``; returns False if ``give_up`` comes first."""
        while not done():
            if give_up():
                return False
            time.sleep(POLL)
        return True


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; returns whether the process existed."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def parent_of(pid: int) -> int | None:
    """Return a process's parent; None if it has ended, even if nobody has waited for it."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.ppid()
    return None


def _is_marked(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError, psutil.Error):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and parent_of(pid) is not None
    return False


@contextlib.contextmanager
def federation(
    folder: Path, experiment: dict[str, object], broker: str | None = None, namespace: str | None = None
) -> Iterator[Federation]:
    """Make a federation and end all its processes after the block. The command does not run yet."""
    made = Federation(folder, experiment, broker, namespace)
    try:
        yield made
    finally:
        if made.starts:
            made.destroy()
