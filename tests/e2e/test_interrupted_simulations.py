"""``fedquilt simulate`` is interrupted in every way: no process is left, and the same command goes on to the same bits.

The interruptions hit one run, one after the other. Its clients do not train, so that no process needs torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

import psutil
import pytest
from tests.support.round_gate import RoundGate
from tests.support.runs import FEDQUILT, finished_rounds
from tests.support.warm import ForkedProgram

ROUNDS = 20
PATIENCE = 60.0
EXPERIMENT = f"""
name: interrupted
rounds: {ROUNDS}
data: {{set: digits, clients: 2}}
model: {{name: ballast, megabytes: 0.1}}
algorithm: {{name: echo}}
fleet:
  - {{kind: pi, agents: 2, clients: 2}}
"""
COMMAND = [*FEDQUILT, "simulate", "experiment.yaml", "--out", "run", "--json"]


def wait_for(done: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, f"no {what} after {PATIENCE} seconds"
        time.sleep(0.02)


def pids(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "pids.json").read_text())
    return found


def await_progress(gate: RoundGate) -> None:
    """Let the run finish two more rounds than now, and hold it in the next one."""
    folder = gate.path.parent
    gate.finish_round(folder, finished_rounds(folder) + 2)


def family(pid: int) -> set[psutil.Process]:
    """Return a process and all its descendants."""
    top = psutil.Process(pid)
    return {top, *top.children(recursive=True)}


def running(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Return those that still run; ``psutil`` tells them from later processes with the same number."""
    left = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


class Interrupted:
    """A simulation of the folder's experiment, all of whose processes must end.

    ``at_once`` says that some get SIGKILL, and may leave a file that they have begun; ``enter`` is called first.
    """

    def __init__(
        self, gate: RoundGate, *, at_once: bool = False, enter: Callable[[], object] | None = None, **streams: Any
    ) -> None:
        def begin() -> None:
            gate.install()
            if enter is not None:
                enter()

        self.gate, self.folder = gate, gate.path.parent
        self.at_once = at_once
        self.process = ForkedProgram(COMMAND, cwd=self.folder, text=True, preexec_fn=begin, **streams)

    def __enter__(self) -> Interrupted:
        try:
            await_progress(self.gate)
            self.family = family(self.process.pid)
            assert len(self.family) >= 5  # simulate, broker, coordinator, two agents; and the agents' workers
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=PATIENCE)
        self.process.kill()
        self.process.wait()
        if exc == (None, None, None):
            wait_for(lambda: not running(self.family), "end of all processes")
            assert finished_rounds(self.folder) < ROUNDS
            assert self.at_once or not list(self.folder.rglob("*.new"))


class Terminal:
    """A terminal that shows what is written to it, until it is closed."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def streams(self) -> dict[str, Any]:
        """How a process starts in the terminal, as the first one of a login."""

        def enter() -> None:
            os.setsid()
            os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that it opens becomes its own

        return {"stdin": self._theirs, "stdout": self._theirs, "stderr": self._theirs, "enter": enter}

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def close(self) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._reader.join()
            os.close(self._theirs)
            os.close(self._ours)

    def _read(self) -> None:
        while not self._closing.is_set():
            if select.select([self._ours], [], [], 0.1)[0]:
                os.read(self._ours, 65536)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> RoundGate:
    """Holds the run, whose folder it is in."""
    made = tmp_path_factory.mktemp("interrupted")
    (made / "experiment.yaml").write_text(EXPERIMENT)
    return RoundGate(made / "gate")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run the experiment without interruption; returns the digest of its model."""
    made = tmp_path_factory.mktemp("undisturbed")
    (made / "experiment.yaml").write_text(EXPERIMENT)
    with ForkedProgram(COMMAND, cwd=made, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert process.wait(PATIENCE) == 0
    return fingerprint(made)


def fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / "run" / "global.safetensors").read_bytes()).hexdigest()


def test_a_closed_terminal(gate: RoundGate) -> None:
    with Terminal() as terminal, Interrupted(gate, **terminal.streams) as simulation:
        terminal.close()
        assert simulation.process.wait(PATIENCE) == 128 + signal.SIGHUP


def test_ctrl_c_twice(gate: RoundGate) -> None:
    """The first one stops all processes in order; here it waits for an agent that does not react."""
    with Terminal() as terminal, Interrupted(gate, at_once=True, **terminal.streams) as simulation:
        agents = [psutil.Process(pid) for pid in pids(simulation.folder)["agents"].values()]
        agents[0].suspend()
        terminal.press_ctrl_c()
        wait_for(lambda: not running({agents[1]}), "end of the other agent")
        terminal.press_ctrl_c()
        assert simulation.process.wait(PATIENCE) == 128 + signal.SIGINT


def test_sigterm_under_nohup(gate: RoundGate) -> None:
    """A closed terminal does not end it."""
    ignore: Any = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    with Interrupted(gate, stdout=subprocess.PIPE, stderr=subprocess.PIPE, enter=ignore) as simulation:
        simulation.process.send_signal(signal.SIGHUP)
        await_progress(gate)
        simulation.process.send_signal(signal.SIGTERM)
        _, shown = simulation.process.communicate(timeout=PATIENCE)
        assert simulation.process.returncode == 128 + signal.SIGTERM
        assert "Run the same command again to resume" in shown
        result = json.loads((simulation.folder / "run" / "result.json").read_text())
        assert (result["status"], result["exit_code"]) == ("stopped", 128 + signal.SIGTERM)


def test_sigkill(gate: RoundGate) -> None:
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with Interrupted(gate, at_once=True, **silent) as simulation:
        simulation.process.kill()


def test_it_goes_on_without_a_reader_of_its_progress_and_shows_restarts(gate: RoundGate, undisturbed: str) -> None:
    """Meanwhile, another simulation of the folder is refused at once."""
    simulation = Interrupted(gate, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process, folder = simulation.process, simulation.folder
    assert process.stdout is not None
    assert process.stderr is not None
    await_progress(gate)
    with ForkedProgram(COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        out, err = second.communicate(timeout=PATIENCE)
    assert (second.returncode, out) == (6, "")
    assert f"process {process.pid} on {gethostname()} uses run: wait for it, stop it, or choose another folder" in err
    os.kill(pids(folder)["agents"]["pi-0"], signal.SIGKILL)
    line = "pi-0 was killed by SIGKILL (out of memory?) and was restarted. Its log is run/logs/pi-0.log"
    assert any(line in shown for shown in process.stderr)
    process.stderr.close()
    os.kill(pids(folder)["coordinator"], signal.SIGKILL)
    gate.open()
    found = json.load(process.stdout)
    process.stdout.close()
    assert process.wait(PATIENCE) == 0
    expected = {"broker": 0, "coordinator": 1, "pi-0": 1, "pi-1": 0}
    restarts = found.pop("restarts")
    assert {name: restarts.pop(name) for name in expected} == expected
    assert set(restarts.values()) <= {0}  # of the fork servers
    assert found == json.loads((folder / "run" / "result.json").read_text())
    assert finished_rounds(folder) == ROUNDS
    assert fingerprint(folder) == undisturbed
    assert not [path for path in folder.rglob("*") if path.suffix == ".new" or path.parent.name == "partial"]


def test_a_stopped_measurement_says_so_and_leaves_no_folder(tmp_path: Path) -> None:
    command = [*FEDQUILT, "bench", "round", "--agents", "1", "--megabytes", "0.1", "--rounds", "10000"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE) as process:
        try:
            wait_for(lambda: list(tmp_path.glob("fedquilt-bench-*/run/result.json")), "measured round")
            everybody = family(process.pid)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "Interrupted" in said
    assert not list(tmp_path.glob("fedquilt-bench-*"))
    wait_for(lambda: not running(everybody), "end of all processes")
