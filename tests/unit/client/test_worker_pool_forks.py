"""The pool with processes that a fork server starts, and what becomes of a job when the server fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.unit.client.pool_driver import COUNT, Driver

from fedquilt_client import worker_pool as pool_module
from fedquilt_client.worker_pool import JobFinished, JobRestarted
from fedquilt_common.process.forked import FORK_SERVER, WORKER_NAME
from fedquilt_common.training_jobs import worker_environment

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: processes are forked there only")


@pytest.fixture
def server(tmp_path: Path, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A fork server for this process's pools; it has loaded no modules, so each fork loads them."""
    kit.package("deadly", COUNT + "if n < 1: os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)")
    kit.package("mortal", COUNT + "if n < 1: os.kill(os.getpid(), signal.SIGKILL)")
    for name, value in worker_environment(1).items():
        monkeypatch.setenv(name, value)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "workers"))
        listener.listen()
        command = [sys.executable, "-m", "fedquilt_common.process.fork_server", str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=(listener.fileno(),))
        monkeypatch.setenv(FORK_SERVER, str(tmp_path / "workers"))
        yield process
        process.kill()
        process.wait()


@needs_linux
def test_a_fork_server_starts_the_processes(server: subprocess.Popen[bytes], driver: Driver, kit: Kit) -> None:
    driver.pool.submit(kit.job(kit.run()))
    assert isinstance(driver.next(), JobFinished)
    (worker,) = (psutil.Process(pid) for pid in driver.pool.processes)
    assert (worker.ppid(), worker.name()) == (server.pid, f"{WORKER_NAME}{os.getpid()}")
    driver.pool.close()
    assert not worker.is_running()


@needs_linux
def test_a_killed_fork_is_replaced_and_the_job_done(
    server: subprocess.Popen[bytes], driver: Driver, kit: Kit, seen: Path
) -> None:
    job = kit.job(kit.run(algorithm={"name": "mortal:Own"}), allowed=["mortal"])
    driver.pool.submit(job)
    assert isinstance(driver.next(), JobFinished)
    assert [psutil.Process(pid).ppid() for pid in driver.pool.processes] == [server.pid]
    died = "the training process was killed by SIGKILL (out of memory?); starting it again"
    assert driver.restarts == [JobRestarted(job, died)]


@needs_linux
def test_a_job_is_done_though_the_fork_server_dies(
    server: subprocess.Popen[bytes], driver: Driver, kit: Kit, seen: Path
) -> None:
    job = kit.job(kit.run(algorithm={"name": "deadly:Own"}), allowed=["deadly"])
    driver.pool.submit(job)
    server.wait()
    Path(os.environ[FORK_SERVER]).unlink()  # as if nobody listened any more
    assert isinstance(driver.next(), JobFinished)
    died = "the training process was killed by SIGTERM (Terminated); starting it again"
    assert driver.restarts == [JobRestarted(job, died)]


@needs_linux
@pytest.mark.parametrize("cause", ["refusal", "silence"])
def test_a_process_that_is_not_forked_is_started_plainly(
    cause: str, server: subprocess.Popen[bytes], driver: Driver, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    if cause == "refusal":
        kit.monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") + os.pathsep + "elsewhere")
    else:
        server.send_signal(signal.SIGSTOP)
        kit.monkeypatch.setattr(pool_module, "START_SECONDS", 0.1)
    driver.pool.submit(kit.job(kit.run()))
    end = time.monotonic() + 60
    while not driver.handle_all():
        assert time.monotonic() < end
        driver.pool.repair()
        time.sleep(0.02)
    assert isinstance(driver.next(), JobFinished)
    assert driver.restarts == []  # a refusal is not the process's death
    assert [psutil.Process(pid).ppid() for pid in driver.pool.processes] == [os.getpid()]
    assert "starting training processes of this agent's own" in caplog.text
