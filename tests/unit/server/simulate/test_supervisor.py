"""A child that dies is restarted. A child that cannot start ends the run, with the end of its log."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.supervised import Stage, alive

from fedquilt_common.errors import RunFailedError
from fedquilt_common.process.forked import WORKER_NAME, ForkedProcess
from fedquilt_server.simulate import failed_starts as failed_starts_module
from fedquilt_server.simulate import supervisor as supervisor_module
from fedquilt_server.simulate.child_process import ChildSpec, Role
from fedquilt_server.simulate.failed_starts import FAILED_STARTS
from fedquilt_server.simulate.process_specs import COORDINATOR_FINAL_CODES

SLEEP = "import time; time.sleep(600)"
IGNORES_SIGTERM = (
    "import signal, time, sys; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    with made.supervisor:
        yield made
    assert [pid for pid in made.seen if alive(pid)] == []


def test_a_killed_child_is_started_again_and_the_pids_are_current(stage: Stage) -> None:
    stage.start("broker", "broker", SLEEP)
    stage.start("coordinator", "coordinator", SLEEP)
    stage.start("strong-0", "agent", SLEEP)
    stage.start("weak-0", "agent", SLEEP)
    first = stage.pids()
    pids = json.loads((stage.folder / "pids.json").read_text())
    assert set(pids) == {"broker", "coordinator", "agents"}
    assert set(pids["agents"]) == {"strong-0", "weak-0"}
    assert all(alive(pid) for pid in first.values())
    for name in ("weak-0", "coordinator"):
        os.kill(stage.pids()[name], signal.SIGKILL)
    stage.watch_until(lambda: all(stage.pids()[name] != first[name] for name in ("weak-0", "coordinator")))
    now = stage.pids()
    assert all(alive(pid) for pid in now.values())
    assert (now["broker"], now["strong-0"]) == (first["broker"], first["strong-0"])
    assert stage.supervisor.restarts() == {"broker": 0, "coordinator": 1, "strong-0": 0, "weak-0": 1}
    logs = stage.folder / "logs"
    assert sorted(stage.reports) == [
        f"{name} was killed by SIGKILL (out of memory?) and was restarted. Its log is {logs / name}.log"
        for name in ("coordinator", "weak-0")
    ]


def test_a_child_has_its_own_session(stage: Stage) -> None:
    """So Ctrl-C in the terminal reaches the supervisor only, which stops the broker last."""
    stage.start("pi", "agent", SLEEP)
    assert os.getsid(stage.pids()["pi"]) == stage.pids()["pi"]


def test_being_killed_is_no_failed_start_however_often(stage: Stage) -> None:
    stage.start("pi", "agent", SLEEP)
    for _ in range(FAILED_STARTS + 2):
        before = stage.pids()["pi"]
        os.kill(before, signal.SIGKILL)
        stage.watch_until(lambda before=before: stage.pids()["pi"] != before)  # type: ignore[misc]


def test_an_agent_that_ends_well_is_started_again(stage: Stage) -> None:
    """Only the coordinator can end the run."""
    log = stage.start("pi", "agent", "print('started', flush=True)")
    stage.watch_until(lambda: log.read_text().count("started") >= FAILED_STARTS + 2)


def test_the_coordinators_good_end_is_the_end(stage: Stage) -> None:
    stage.start("pi", "agent", SLEEP)
    stage.start("coordinator", "coordinator", "pass")
    end = time.monotonic() + 60
    while not stage.supervisor.watch():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert alive(stage.pids()["pi"])


def test_a_child_that_fails_at_once_each_time_is_given_up_with_the_end_of_its_log(stage: Stage) -> None:
    words = "import sys; [print('line', i) for i in range(40)]; sys.exit('no such board')"
    log = stage.start("pi", "agent", words)
    with pytest.raises(RunFailedError) as failure:
        stage.watch_until(lambda: False)
    text = str(failure.value)
    assert f"pi ended with exit code 1. The end of its log ({log}):" in text
    assert text.endswith("no such board")
    assert ("line 39" in text, "line 3\n" in text) == (True, False)
    assert log.read_text().count("no such board") == FAILED_STARTS
    assert failure.value.exit_code == RunFailedError.exit_code


def test_a_failure_after_a_long_life_starts_the_count_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_starts_module, "SHORT_LIFE", 0.0)
    log = stage.start("pi", "agent", "print('started', flush=True); raise SystemExit(1)")
    stage.watch_until(lambda: log.read_text().count("started") > FAILED_STARTS + 1)


@pytest.mark.parametrize(
    ("ending", "is_final"), [("'fedquilt: too large\\nat 7'", True), ("f'fedquilt: at {time.time_ns()}'", False)]
)
def test_the_same_error_again_and_again_is_given_up_after_a_longer_life(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ending: str, *, is_final: bool
) -> None:
    monkeypatch.setattr(failed_starts_module, "SHORT_LIFE", 0.0)
    log = stage.start("coordinator", "coordinator", f"import sys, time; print('started'); sys.exit(str({ending}))")
    many = lambda: log.read_text().count("started") > FAILED_STARTS + 1  # noqa: E731
    if is_final:
        with pytest.raises(RunFailedError, match="too large"):
            stage.watch_until(many)
        assert log.read_text().count("started") == FAILED_STARTS + 1  # the first one could have been any error
    else:
        stage.watch_until(many)


@pytest.mark.parametrize("code", sorted(COORDINATOR_FINAL_CODES))
def test_what_another_start_would_not_mend_is_given_up_at_once(stage: Stage, code: int) -> None:
    words = f"print('why', flush=True); raise SystemExit({code})"
    log = stage.start("coordinator", "coordinator", words, final=COORDINATOR_FINAL_CODES)
    with pytest.raises(RunFailedError, match=f"(?s)coordinator ended with exit code {code}.*why") as failure:
        stage.watch_until(lambda: False)
    assert failure.value.exit_code == code
    assert log.read_text() == "why\n"


def test_the_coordinators_own_message_is_the_whole_error_and_earlier_runs_are_no_part_of_it(stage: Stage) -> None:
    """The log of a folder that is used again begins with the errors of earlier runs."""
    log = stage.folder / "logs" / "coordinator.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("fedquilt: data.set = 'digit': unknown\n")
    words = "print('Loading', flush=True); raise SystemExit('fedquilt: model.hiden: unknown')"
    stage.start("coordinator", "coordinator", words, final=frozenset({1}))
    with pytest.raises(RunFailedError) as failure:
        stage.watch_until(lambda: False)
    assert (str(failure.value), failure.value.exit_code) == ("model.hiden: unknown", 1)
    stage.start("coordinator", "coordinator", "print('why', flush=True); raise SystemExit(4)")
    with pytest.raises(RunFailedError, match=r"exit code 4\. The end of its log \([^\n]*\):\nwhy$"):
        stage.watch_until(lambda: False)


def test_an_agent_that_finds_no_broker_is_started_again(stage: Stage) -> None:
    """Its next start may cut its reply for a broker that accepts smaller messages only."""
    log = stage.start("pi", "agent", "print('up', flush=True); raise SystemExit(3)")
    with pytest.raises(RunFailedError) as failure:
        stage.watch_until(lambda: False)
    assert (log.read_text().count("up"), failure.value.exit_code) == (FAILED_STARTS, 3)


PRINTS_END_TIME = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(print('end', time.monotonic(), flush=True)))
print('up', flush=True)
time.sleep(600)
"""


def test_leaving_ends_all_children_the_broker_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_SECONDS", 60.0)
    stage = Stage(tmp_path)
    roles: tuple[Role, ...] = ("broker", "coordinator", "agent")
    with stage.supervisor:
        logs = {role: stage.start(role, role, PRINTS_END_TIME) for role in roles}
        stage.watch_until(lambda: all("up" in log.read_text() for log in logs.values()))
    assert not any(alive(pid) for pid in stage.seen)
    ended = {role: float(log.read_text().split()[-1]) for role, log in logs.items()}
    assert ended["agent"] < ended["coordinator"] < ended["broker"]


def test_a_child_that_will_not_go_is_made_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_SECONDS", 0.2)
    stage = Stage(tmp_path)
    with stage.supervisor:
        log = stage.start("pi", "agent", IGNORES_SIGTERM)
        stage.watch_until(lambda: "deaf" in log.read_text())
    assert not any(alive(pid) for pid in stage.seen)


def test_a_child_has_the_environment_that_it_is_given(stage: Stage) -> None:
    code = f"import os, time; print(os.environ['BOARD'], flush=True); {SLEEP}"
    log = stage.start("pi", "agent", code, {**os.environ, "BOARD": "pi-5"})
    stage.watch_until(lambda: log.read_text() == "pi-5\n")


WITH_WORKER = """
import subprocess, sys, time
held = "import time; b = b'x' * (80 << 20); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", held])
time.sleep(600)
"""


def test_memory_is_the_highest_of_all_starts_and_of_the_workers(stage: Stage) -> None:
    stage.start("pi", "agent", WITH_WORKER)
    stage.watch_until(lambda: stage.supervisor.memory()["pi"].workers > 80 << 20)
    memory = stage.supervisor.memory()["pi"]
    assert 0 < memory.peak < memory.workers
    before = stage.pids()["pi"]
    (worker,) = psutil.Process(before).children()
    os.kill(before, signal.SIGKILL)
    worker.kill()
    stage.watch_until(lambda: stage.pids()["pi"] != before)
    assert stage.supervisor.memory()["pi"].workers == memory.workers
    stage.watch_until(lambda: bool(psutil.Process(stage.pids()["pi"]).children()))
    for process in psutil.Process(stage.pids()["pi"]).children():
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which signals a child when its parent dies")
def test_children_end_with_a_supervisor_that_is_killed(stage: Stage) -> None:
    parent = (
        "import sys, time; from pathlib import Path; from fedquilt_server.simulate.supervisor import *\n"
        "from fedquilt_server.simulate.child_process import ChildSpec\n"
        f"s = Supervisor(Path({str(stage.folder / 'inner.json')!r}))\n"
        f"child = (sys.executable, '-S', '-c', {SLEEP!r})\n"
        f"s.start(ChildSpec('pi', 'agent', child, Path({str(stage.folder / 'x.log')!r})))\n"
        "time.sleep(600)"
    )
    inner = stage.folder / "inner.json"
    stage.start("outer", "agent", parent, options=())
    stage.watch_until(inner.exists)
    child = json.loads(inner.read_text())["agents"]["pi"]
    os.kill(stage.pids()["outer"], signal.SIGKILL)
    stage.watch_until(lambda: not alive(child))


def test_a_child_that_brings_itself_down_is_not_started_for_ever(stage: Stage) -> None:
    """As torch does on a processor for which its wheel was not built."""
    stage.start("pi", "agent", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(RunFailedError, match=r"pi was killed by SIGILL \(Illegal instruction\)\. The end of its log"):
        stage.watch_until(lambda: False)


def test_a_second_interrupt_ends_all_children_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the parent process continues, as that of a notebook does."""
    for name, role in (("broker", "broker"), ("coordinator", "coordinator"), ("strong-0", "agent")):
        stage.start(name, role, IGNORES_SIGTERM)  # type: ignore[arg-type]

    def interrupt(process: object, seconds: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor_module, "_wait_or_kill", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stage.supervisor.stop()
    assert not any(alive(pid) for pid in stage.pids().values())


LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: processes are forked there only")


class Forks:
    """A fork server that a supervisor keeps alive, and the specifications of agents that it starts."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.address = stage.folder / "socket"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.address))
        self.listener.listen()
        self.environment = {**os.environ, "PYTHONPATH": f"{stage.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def start_server(self, module: str = "fedquilt_common.process.fork_server") -> None:
        argv = (sys.executable, "-m", module, str(self.listener.fileno()))
        log = self.stage.folder / "logs" / "forks.log"
        self.stage.supervisor.start(ChildSpec("forks", "fork server", argv, log, self.environment, self.listener))

    def start(self, name: str, code: str) -> Path:
        (self.stage.folder / f"{name}.py").write_text(code)
        log = self.stage.folder / "logs" / f"{name}.log"
        argv = (sys.executable, "-m", name)
        self.stage.supervisor.start(ChildSpec(name, "agent", argv, log, self.environment, fork_server=self.address))
        self.stage.seen.add(self.stage.agent(name))
        return log

    @property
    def server(self) -> int:
        return int(json.loads((self.stage.folder / "pids.json").read_text())["fork_servers"]["forks"])


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    stage = Stage(tmp_path)
    with stage.supervisor:
        made = Forks(stage)
        yield made
    made.listener.close()
    assert [pid for pid in stage.seen if alive(pid)] == []


@LINUX_ONLY
def test_a_forked_agent_is_kept_alive_like_any_other(forks: Forks) -> None:
    forks.start_server()
    log = forks.start("pi", f"print('up', flush=True); {SLEEP}")
    first = forks.stage.agent("pi")
    assert psutil.Process(first).ppid() == forks.server
    forks.stage.watch_until(lambda: log.read_text() == "up\n")
    assert os.getsid(first) == first
    os.kill(first, signal.SIGKILL)
    forks.stage.watch_until(lambda: forks.stage.agent("pi") != first)
    assert forks.stage.reports == [f"pi was killed by SIGKILL (out of memory?) and was restarted. Its log is {log}"]
    forks.stage.watch_until(lambda: log.read_text() == "up\nup\n")
    assert psutil.Process(forks.stage.agent("pi")).ppid() == forks.server


@LINUX_ONLY
def test_a_killed_fork_server_and_its_agents_are_restarted(forks: Forks) -> None:
    forks.start_server()
    forks.start("pi", SLEEP)
    first, server = forks.stage.agent("pi"), forks.server
    os.kill(server, signal.SIGKILL)
    forks.stage.watch_until(lambda: first != forks.stage.agent("pi"))
    assert not alive(first)
    assert psutil.Process(forks.stage.agent("pi")).ppid() == forks.server != server
    assert forks.stage.supervisor.restarts() == {"forks": 1, "pi": 1}


@LINUX_ONLY
def test_without_its_fork_server_an_agent_is_started_plainly(forks: Forks) -> None:
    (forks.stage.folder / "broken.py").write_text("raise SystemExit('cannot load')")
    forks.start_server("broken")
    forks.stage.watch_until(lambda: "does not start" in forks.stage.said)
    forks.start("pi", SLEEP)
    assert psutil.Process(forks.stage.agent("pi")).ppid() == os.getpid()
    assert not forks.stage.supervisor.watch()


@LINUX_ONLY
def test_an_agent_does_not_wait_for_a_fork_server_that_has_died(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor restarts it later."""
    monkeypatch.setattr("fedquilt_server.simulate.child_process.FORK_SECONDS", 1e6)
    (forks.stage.folder / "broken.py").write_text("import time; time.sleep(0.3); raise SystemExit('cannot load')")
    forks.start_server("broken")
    forks.start("pi", SLEEP)
    assert psutil.Process(forks.stage.agent("pi")).ppid() == os.getpid()


@LINUX_ONLY
def test_an_agent_that_fails_at_once_ends_the_run_also_if_it_is_forked(forks: Forks) -> None:
    forks.start_server()
    forks.start("pi", "raise SystemExit('no such board')")
    with pytest.raises(RunFailedError, match=r"(?s)pi ended with exit code 1.*no such board"):
        forks.stage.watch_until(lambda: False)


@LINUX_ONLY
def test_the_memory_of_forked_training_processes_counts_for_their_agent(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "SAMPLE_SECONDS", 0.0)
    forks.start_server()
    forks.start("pi", SLEEP)
    (forks.stage.folder / "training.py").write_text(f"b = b'x' * (80 << 20); {SLEEP}")
    argv, name = (sys.executable, "-m", "training"), f"{WORKER_NAME}{forks.stage.agent('pi')}"
    training = ForkedProcess(str(forks.address), argv, (0, 1, 2), forks.environment, name)
    forks.stage.watch_until(lambda: forks.stage.supervisor.memory()["pi"].workers > 80 << 20)
    assert forks.stage.supervisor.memory()["pi"].peak < 80 << 20
    assert forks.stage.supervisor.memory()["forks"].workers == 0
    training.kill()
    training.wait()


def test_the_message_of_a_coordinator_whose_run_failed_is_the_reason_without_its_log(stage: Stage) -> None:
    code = "print('Traceback of the algorithm\\nfedquilt: own:Own.init:\\nreturned None'); raise SystemExit(7)"
    stage.start("coordinator", "coordinator", code)
    with pytest.raises(RunFailedError, match=r"^own:Own\.init:\nreturned None$") as failed:
        stage.watch_until(lambda: False)
    assert failed.value.exit_code == 7
