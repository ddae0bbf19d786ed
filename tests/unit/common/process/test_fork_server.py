"""A fork behaves as a process of its own: streams, environment, signals, exit codes, and who ends whom."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.support.ended import is_gone

from fedquilt_common.process.forked import NAME_BYTES, ForkedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: pidfd, and signals from a dying parent")
SERVER = (sys.executable, "-W", "error", "-m", "fedquilt_common.process.fork_server")
SLEEP = "import time; time.sleep(600)"


class Stage:
    """A fork server and its socket; programs are modules of a folder on its path."""

    def __init__(self, folder: Path, warm: str = "") -> None:
        self.folder = folder
        (folder / "warmed.py").write_text(warm)
        self.environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(folder / "socket"))
        self.listener.listen()
        self.server = self.start_server()

    def start_server(self) -> subprocess.Popen[bytes]:
        command = (*SERVER, str(self.listener.fileno()), "warmed")
        return subprocess.Popen(command, env=self.environment, pass_fds=(self.listener.fileno(),))

    def fork(self, code: str, *words: str, env: dict[str, str] | None = None, session: bool = False) -> ForkedProcess:
        """Start a program whose standard output and error go to the file ``out``."""
        (self.folder / "program.py").write_text(code)
        argv = (sys.executable, "-m", "program", *words)
        with (self.folder / "in").open("a+") as nothing, self.out.open("a") as out:
            streams = nothing.fileno(), out.fileno(), out.fileno()
            environment = {**self.environment, **(env or {})}
            return ForkedProcess(str(self.folder / "socket"), argv, streams, environment, "board-0", session=session)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def close(self) -> None:
        self.server.kill()
        self.server.wait()
        self.listener.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def started(process: ForkedProcess) -> int:
    assert process.wait_started(60), process.refusal
    assert process.pid is not None
    return process.pid


def wait_for(done: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_is_a_process_as_python_m_starts_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import json, os, pathlib, sys, __main__\n"
        "pathlib.Path('here').touch()\n"
        "facts = [sys.argv[1:], __name__, __main__.__name__, os.environ['BOARD'], os.getsid(0) == os.getpid(),"
        " len(os.listdir('/proc/self/fd')), pathlib.Path('/proc/self/comm').read_text()]\n"
        "print(json.dumps(facts), flush=True)\n"
    )
    monkeypatch.chdir(stage.folder)
    process = stage.fork(code, "--id", "x", env={"BOARD": "pi-5"}, session=True)
    pid = started(process)
    assert process.wait(60) == 0
    descriptors = 4  # the three streams, and the one that lists the folder
    assert json.loads(stage.out.read_text()) == [
        ["--id", "x"], "__main__", "__main__", "pi-5", True, descriptors, "board-0\n"
    ]  # fmt: skip
    assert (stage.folder / "here").exists()
    assert process.poll() == 0
    assert is_gone(pid)
    process.kill()  # no effect on one that has ended


def test_modules_are_loaded_once_and_objects_are_frozen(tmp_path: Path) -> None:
    made = Stage(tmp_path, "print('loading', flush=True)\nkept = [[] for _ in range(1000)]")
    try:
        code = "import gc, warmed; print(len(warmed.kept), gc.get_freeze_count() > 1000, flush=True)"
        for _ in range(2):
            assert made.fork(code).wait(60) == 0
        assert made.out.read_text() == "1000 True\n" * 2
    finally:
        made.close()


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no such board')", 1, "no such board\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(9)", 9, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
        ("import atexit; atexit.register(print, 'bye')", 0, "bye\n"),
    ],
    ids=["code", "text", "error", "left", "crashed", "atexit"],
)
def test_its_exit_code_is_reported(stage: Stage, code: str, exit_code: int, words: str) -> None:
    assert stage.fork(code).wait(60) == exit_code
    assert words in stage.out.read_text()


def test_it_can_be_terminated_and_killed(stage: Stage) -> None:
    first, second = stage.fork(SLEEP), stage.fork(SLEEP)
    started(first), started(second)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.05)
    assert first.poll() is None
    first.terminate()
    assert first.wait(60) == -signal.SIGTERM
    second.kill()
    assert second.wait(60) == -signal.SIGKILL


def test_a_signal_from_outside_is_its_end(stage: Stage) -> None:
    process = stage.fork(SLEEP)
    os.kill(started(process), signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def test_it_ends_with_the_one_who_started_it(stage: Stage) -> None:
    (stage.folder / "program.py").write_text(SLEEP)
    address = str(stage.folder / "socket")
    owner = (
        "import os, sys, time\nfrom fedquilt_common.process.forked import ForkedProcess\n"
        f"p = ForkedProcess({address!r}, (sys.executable, '-m', 'program'), (0, 1, 2), os.environ, 'x')\n"
        "p.wait_started(60)\nprint(p.pid, flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", owner]
    with subprocess.Popen(command, env=stage.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not is_gone(pid)
        process.kill()
    wait_for(lambda: is_gone(pid))


def test_it_ends_with_the_server_and_a_restarted_server_goes_on(stage: Stage) -> None:
    process = stage.fork(SLEEP)
    pid = started(process)
    stage.server.kill()
    assert process.wait(60) == -signal.SIGTERM
    assert is_gone(pid)
    stage.server.wait()
    waiting = stage.fork("raise SystemExit(3)")  # the socket is open meanwhile
    stage.server = stage.start_server()
    assert waiting.wait(60) == 3


DIES_AFTER_FORK = """
import os, pathlib, time
fork, out = os.fork, pathlib.Path(__file__).with_name("out")
def fork_and_die():
    if (pid := fork()) == 0:
        return 0
    while "up" not in out.read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
os.fork = fork_and_die
"""


def test_its_end_is_not_reported_before_it_has_ended(tmp_path: Path) -> None:
    """Nobody else may use what it uses, such as a locked folder, while it still cleans up."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (time.sleep(0.3), print('cleaned', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)"
    )
    with contextlib.closing(Stage(tmp_path, DIES_AFTER_FORK)) as stage:
        stage.fork(code).wait(60)
        assert "cleaned" in stage.out.read_text()


FAILS_IN_FORKS = """
import os
server, open_process = os.getpid(), os.pidfd_open
def fail_in_forks(pid):
    if os.getpid() != server:
        raise OSError(24, "Too many open files")
    return open_process(pid)
os.pidfd_open = fail_in_forks
"""


def test_a_fork_that_cannot_become_the_process_ends(tmp_path: Path) -> None:
    """It would have been a second server at the same socket."""
    with contextlib.closing(Stage(tmp_path, FAILS_IN_FORKS)) as stage:
        process = stage.fork("print('never', flush=True)")
        assert not process.wait_started(60)
        assert process.refusal == "[Errno 24] Too many open files"
        wait_for(lambda: not psutil.Process(stage.server.pid).children())
        assert stage.out.read_text() == ""


def test_nothing_is_started_for_one_who_has_gone(stage: Stage) -> None:
    stage.server.send_signal(signal.SIGSTOP)
    hasty = stage.fork("print('started', flush=True)")
    assert not hasty.wait_started(0.05)
    hasty.kill()
    assert hasty.poll() == -signal.SIGTERM
    assert hasty.refusal == "the fork server did not answer in time"
    stage.server.send_signal(signal.SIGCONT)
    assert stage.fork("print('second', flush=True)").wait(60) == 0
    assert stage.out.read_text() == "second\n"


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "PYTHONPATH"])
def test_another_environment_at_the_import_is_refused(stage: Stage, variable: str) -> None:
    """The number of threads of a library changes the bits of what it computes."""
    process = stage.fork(SLEEP, env={variable: "3"})
    assert not process.wait_started(60)
    assert process.refusal.startswith(f"{variable} is 3, the fork server has")


def test_a_server_with_threads_refuses(tmp_path: Path) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    made = Stage(tmp_path, code)
    try:
        process = made.fork(SLEEP)
        assert not process.wait_started(60)
        assert process.refusal == "the fork server has 2 threads, and a fork would have only one of them"
    finally:
        made.close()


def test_other_programs_are_refused(stage: Stage) -> None:
    address = str(stage.folder / "socket")
    process = ForkedProcess(address, ("/bin/true",), (0, 1, 2), stage.environment, "x" * 2 * NAME_BYTES)
    assert not process.wait_started(60)
    assert "runs modules only, not /bin/true" in process.refusal


def test_without_a_server_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ForkedProcess(str(tmp_path / "nothing"), ("x",), (0, 1, 2), {}, "x")


def test_a_module_that_cannot_be_loaded_ends_the_server(stage: Stage) -> None:
    command = (*SERVER, str(stage.listener.fileno()), "no_such_module")
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=(stage.listener.fileno(),), check=False)
    assert done.returncode == 1
    assert "no_such_module" in done.stderr


def test_many_are_started_at_once(stage: Stage) -> None:
    processes = [stage.fork("import sys; sys.exit(int(sys.argv[1]))", str(number)) for number in range(30)]
    assert [process.wait(60) for process in processes] == list(range(30))


def test_forks_draw_other_random_numbers(tmp_path: Path) -> None:
    made = Stage(tmp_path, "import numpy")
    try:
        for _ in range(2):
            made.fork("import numpy, random; print(numpy.random.random(), random.random(), flush=True)").wait(60)
        assert len(set(made.out.read_text().split())) == 4
    finally:
        made.close()


_PARENT = """
import os, socket, subprocess, sys, time
from fedquilt_common.process.child import die_with_parent
listener, own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), os.getpid()
listener.bind(sys.argv[1])
listener.listen()
command, number = sys.argv[2:], listener.fileno()
subprocess.Popen([*command, str(number)], pass_fds=[number], preexec_fn=lambda: die_with_parent(own))
time.sleep(600)
"""


def test_it_deletes_its_socket_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Nobody else would: a simulation that is killed deletes no temporary folder."""
    (tmp_path / "both").mkdir()
    parents = [
        subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path / "both" / name), *SERVER]) for name in "ab"
    ]
    for parent in parents:
        wait_for(partial(has_ready_child, psutil.Process(parent.pid)))
    for parent, left in zip(parents, ({"b"}, None), strict=True):
        parent.kill()
        parent.wait()
        wait_for(partial(holds, tmp_path / "both", left))


def has_ready_child(parent: psutil.Process) -> bool:
    """Whether a process has a child that handles SIGTERM."""
    for child in parent.children():
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        (caught,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")]
        if caught >> (signal.SIGTERM - 1) & 1:
            return True
    return False


def holds(folder: Path, names: set[str] | None) -> bool:
    """Whether a folder holds these files; None: whether there is none."""
    return names_in(folder) == names


def names_in(folder: Path) -> set[str] | None:
    return {path.name for path in folder.iterdir()} if folder.exists() else None
