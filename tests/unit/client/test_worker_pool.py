"""The pool with real processes: what becomes of a job whose process is killed, hangs, or prints what it likes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from tests.unit.client.pool_driver import COUNT, Driver, workers_of_this_process

from fedquilt_client import worker_pool as pool_module
from fedquilt_client import worker_process
from fedquilt_client.worker_pool import (
    ATTEMPTS,
    JobFailed,
    JobFinished,
    JobRestarted,
    WorkerPool,
)
from fedquilt_common.files.digests import digest_file
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

Wait = Callable[..., Any]


def test_a_job_is_done(driver: Driver, kit: Kit) -> None:
    job = kit.job(kit.run(), client=2)
    assert workers_of_this_process() == []  # none before the first job
    driver.pool.submit(job)
    assert driver.pool.jobs == [job]
    event = driver.next()
    assert isinstance(event, JobFinished)
    assert event.job == job
    assert not event.result.memory
    assert (event.result.digest, event.result.size) == (digest_file(job.reply, "xxh3"), job.reply.stat().st_size)
    reply = FileArrays(job.reply)
    for name, x in FileArrays(kit.blob().path).items():
        assert np.array_equal(reply[name], x + np.float32(0.5))
    assert ReplyHeader.model_validate_json(reply.metadata[REPLY_KEY]).client == 2
    assert driver.pool.jobs == []


def test_one_process_does_one_job_after_the_other(driver: Driver, kit: Kit, seen: Path) -> None:
    run = kit.run(algorithm={"name": kit.package("noting", "Path(os.environ['SEEN'], str(os.getpid())).touch()")})
    jobs = [kit.job(run, client, allowed=["noting"]) for client in range(3)]
    for job in jobs:
        driver.pool.submit(job)
    assert driver.pool.jobs == jobs
    assert [driver.next().job for _ in jobs] == jobs
    assert len(list(seen.iterdir())) == 1


@pytest.mark.parametrize("driver", [2], indirect=True)
def test_two_processes_work_at_the_same_time(driver: Driver, kit: Kit, seen: Path) -> None:
    """Each waits until the other is there."""
    code = "Path(os.environ['SEEN'], str(os.getpid())).touch()\nwhile len(os.listdir(os.environ['SEEN'])) < 2:\n"
    run = kit.run(algorithm={"name": kit.package("meeting", code + "    time.sleep(0.01)")})
    for client in range(2):
        driver.pool.submit(kit.job(run, client, allowed=["meeting"]))
    assert [type(driver.next()) for _ in range(2)] == [JobFinished, JobFinished]


def test_a_killed_process_is_replaced_and_the_job_done(driver: Driver, kit: Kit, seen: Path) -> None:
    code = COUNT + f"if ctx.client == 0 and n < {ATTEMPTS - 1}: os.kill(os.getpid(), signal.SIGKILL)"
    run = kit.run(algorithm={"name": kit.package("mortal", code)})
    job, behind = kit.job(run, allowed=["mortal"]), kit.job(run, 1, allowed=["mortal"])
    driver.pool.submit(job)
    driver.pool.submit(behind)
    assert [(type(event), event.job) for event in (driver.next(), driver.next())] == [
        (JobFinished, job),
        (JobFinished, behind),
    ]
    assert len(list(seen.iterdir())) == ATTEMPTS + 1
    died = "the training process was killed by SIGKILL (out of memory?); starting it again"
    assert driver.restarts == [JobRestarted(job, died)] * (ATTEMPTS - 1)


@pytest.mark.parametrize(
    ("death", "words"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            r"died 3 times; the last one was killed by SIGKILL \(out of memory\?\)",
        ),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            r"died 3 times; the last one was killed by SIGSEGV \(Segmentation fault\)$",
        ),
        ("os._exit(9)", r"died 3 times; the last one ended with exit code 9$"),
    ],
    ids=["killed", "crashed", "left"],
)
def test_it_is_given_up_at_last(driver: Driver, kit: Kit, seen: Path, death: str, words: str) -> None:
    job = kit.job(kit.run(algorithm={"name": kit.package("doomed", COUNT + death)}), allowed=["doomed"])
    driver.pool.submit(job)
    event = driver.next()
    assert isinstance(event, JobFailed)
    assert re.search(words, event.reason)
    assert len(list(seen.iterdir())) == ATTEMPTS
    assert driver.pool.jobs == []
    driver.pool.submit(kit.job(kit.run("after")))
    assert isinstance(driver.next(), JobFinished)


def test_a_process_that_died_idle_is_replaced(driver: Driver, kit: Kit, wait_for: Wait) -> None:
    driver.pool.submit(kit.job(kit.run()))
    driver.next()
    worker = workers_of_this_process()[0]
    worker.kill()
    wait_for(lambda: not driver.posted.empty(), "its end")
    assert driver.handle_all() == []
    driver.pool.submit(kit.job(kit.run(), 1))
    assert isinstance(driver.next(), JobFinished)
    assert workers_of_this_process()[0].pid != worker.pid


def test_a_job_handed_to_a_dying_process_is_not_lost(driver: Driver, kit: Kit) -> None:
    driver.pool.submit(kit.job(kit.run()))
    driver.next()
    workers_of_this_process()[0].kill()
    driver.pool.submit(kit.job(kit.run(), 1))  # the pool has not heard of the end yet
    assert isinstance(driver.next(), JobFinished)


def test_a_worker_that_does_not_leave_a_cancelled_job_is_ended(
    driver: Driver, kit: Kit, seen: Path, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_SECONDS", 0.2)
    code = "Path(os.environ['SEEN'], str(os.getpid())).touch()\ntime.sleep(600)"
    run = kit.run(algorithm={"name": kit.package("sleepy", code)})
    running, waiting, kept = kit.job(run, 0, allowed=["sleepy"]), kit.job(run, 1), kit.job(kit.run("other"), 2)
    for job in (running, waiting, kept):
        driver.pool.submit(job)
    pid = int(wait_for(lambda: list(seen.iterdir()))[0].name)
    driver.pool.cancel(lambda job: job.client < 2)
    assert driver.pool.jobs == [kept]
    assert psutil.pid_exists(pid)
    time.sleep(0.2)
    driver.pool.repair()
    assert not psutil.pid_exists(pid)
    event = driver.next()
    assert isinstance(event, JobFinished)
    assert event.job == kept
    assert driver.handle_all() == []


def test_a_worker_leaves_a_cancelled_job_and_stays_warm(driver: Driver, kit: Kit, seen: Path, wait_for: Wait) -> None:
    """Starting torch again for every round that a slow board misses would make it miss the next one too."""
    code = "Path(os.environ['SEEN'], str(os.getpid())).touch()\nwhile True:\n  time.sleep(0.01)\n  ctx.on_progress(0.5)"
    endless = kit.job(kit.run(algorithm={"name": kit.package("endless", code)}), 0, allowed=["endless"])
    driver.pool.submit(endless)
    pid = int(wait_for(lambda: list(seen.iterdir()))[0].name)
    driver.pool.cancel(lambda job: True)
    after = kit.job(kit.run("other"), 1)
    driver.pool.submit(after)
    event = driver.next()
    assert isinstance(event, JobFinished)
    assert event.job == after
    assert [process.pid for process in workers_of_this_process()] == [pid]


def test_a_job_that_is_cancelled_in_its_last_step_leaves_no_files(
    driver: Driver, kit: Kit, seen: Path, wait_for: Wait
) -> None:
    code = "ctx.memory['m'] = ctx.data.x\nPath(os.environ['SEEN'], 'here').touch()\ntime.sleep(0.3)"
    late = kit.job(kit.run(algorithm={"name": kit.package("late", code)}), 0, allowed=["late"])
    driver.pool.submit(late)
    wait_for(lambda: list(seen.iterdir()))
    driver.pool.cancel(lambda job: True)
    after = kit.job(kit.run("other"), 1)
    driver.pool.submit(after)
    assert driver.next().job == after
    assert after.reply.exists()
    assert not late.reply.exists()
    assert not late.memory_out.exists()


def test_cancelling_leaves_others_alone(driver: Driver, kit: Kit) -> None:
    first, second = kit.job(kit.run(), 0), kit.job(kit.run(), 1)
    driver.pool.submit(first)
    driver.pool.submit(second)
    driver.pool.cancel(lambda job: job.client > 1)
    assert [driver.next().job, driver.next().job] == [first, second]


@pytest.mark.parametrize("driver", [2], indirect=True)
def test_closing_leaves_no_process(driver: Driver, kit: Kit, seen: Path, wait_for: Wait) -> None:
    code = "Path(os.environ['SEEN'], str(os.getpid())).touch()\ntime.sleep(600)"
    run = kit.run(algorithm={"name": kit.package("sleeper", code)})
    for client in range(3):
        driver.pool.submit(kit.job(run, client, allowed=["sleeper"]))
    wait_for(lambda: len(list(seen.iterdir())) == 2)
    assert len(workers_of_this_process()) == 2
    driver.pool.close()
    assert workers_of_this_process() == []
    assert driver.pool.jobs == []
    wait_for(lambda: not driver.posted.empty())
    assert driver.handle_all() == []


def test_what_a_library_prints_does_no_harm(driver: Driver, kit: Kit) -> None:
    lines = [
        "print('noise')",
        'print(\'{"number": 0, "event": "done"}\', flush=True)',
        "os.write(1, b'\\xff{garbage\\n')",
        "os.system('echo from a child')",
    ]
    job = kit.job(kit.run(algorithm={"name": kit.package("noisy", "\n".join(lines))}), allowed=["noisy"])
    driver.pool.submit(job)
    event = driver.next()
    assert isinstance(event, JobFinished)
    assert event.result.digest == digest_file(job.reply, "xxh3")


def test_a_job_that_fails_says_why_and_the_next_is_done(driver: Driver, kit: Kit) -> None:
    run = kit.run(algorithm={"name": kit.package("failing", "if ctx.client == 0: raise RuntimeError('no luck')")})
    driver.pool.submit(kit.job(run, 0, allowed=["failing"]))
    driver.pool.submit(kit.job(run, 1, allowed=["failing"]))
    failed, done = driver.next(), driver.next()
    assert isinstance(failed, JobFailed)
    assert failed.reason == "RuntimeError: no luck (failing.py line 7)"
    assert isinstance(done, JobFinished)


def test_threads_are_limited(kit: Kit, seen: Path) -> None:
    driver = Driver(1)
    driver.pool = WorkerPool(1, 3, driver.posted.put, driver.events.append)
    code = "Path(os.environ['SEEN'], os.environ['OMP_NUM_THREADS'] + os.environ['OPENBLAS_NUM_THREADS']).touch()"
    driver.pool.submit(kit.job(kit.run(algorithm={"name": kit.package("counting", code)}), allowed=["counting"]))
    assert isinstance(driver.next(), JobFinished)
    driver.pool.close()
    assert [path.name for path in seen.iterdir()] == ["33"]


def test_the_cut_line_of_a_killed_process_is_ignored(driver: Driver, kit: Kit) -> None:
    """A process that is killed in the middle of a line leaves half of it in the pipe."""
    driver.pool.submit(kit.job(kit.run()))
    driver.next()
    process = driver.pool._slots[0].process
    assert process is not None
    driver.pool.close()
    driver.pool._take_line(0, process, '{"number": 0, "eve')
    assert driver.events == []


def test_a_process_that_dies_in_the_middle_of_a_line_is_replaced(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is cut within a character of two bytes."""
    code = """if True:
        import os, sys
        sys.stdin.readline()
        os.write(1, '{"number":0,"event":"failed","reason":"é'.encode()[:-1])
    """
    monkeypatch.setattr(worker_process, "subprocess", subprocess)  # no fork of this process
    monkeypatch.setattr(worker_process, "worker_command", lambda _: [sys.executable, "-S", "-c", code])
    driver = Driver(1)
    driver.pool.submit(kit.job(kit.run()))
    event = driver.next()
    assert isinstance(event, JobFailed)
    assert event.reason == f"the training process died {ATTEMPTS} times; the last one ended with exit code 0"


@pytest.mark.parametrize("failures", [2, 99])
def test_a_job_whose_disk_fails_starts_again_after_a_pause(
    failures: int, driver: Driver, kit: Kit, seen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kit.monkeypatch.setattr(pool_module, "DISK_PAUSES", (0.1, 0.1, 0.1))
    own = kit.package("failing_disk", f"{COUNT}if n < {failures}: raise OSError(28, 'No space left on device')")
    job = kit.job(kit.run(algorithm={"name": own}), allowed=["failing_disk"])
    driver.pool.submit(job)
    end = time.monotonic() + 60
    while not driver.handle_all():
        assert time.monotonic() < end
        assert driver.pool.jobs == [job]
        driver.pool.repair()
        time.sleep(0.01)
    event = driver.next()
    assert isinstance(event, JobFinished if failures == 2 else JobFailed)
    assert len(list(seen.iterdir())) == min(failures, 3) + 1
    assert "No space left on device; trying again in 0.1 s" in caplog.text


def test_a_cancelled_job_leaves_no_counts(driver: Driver, kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    own = kit.package("failing", "raise OSError(28, 'No space left on device')")
    driver.pool.submit(kit.job(kit.run(algorithm={"name": own}), allowed=["failing"]))
    while "trying again" not in caplog.text:
        driver.posted.get(timeout=60)()
    assert driver.pool._disk_failures
    driver.pool.cancel(lambda _: True)
    driver.pool.repair()
    assert not driver.pool._disk_failures


def test_an_idle_process_is_ended_and_the_next_job_starts_another(kit: Kit, seen: Path) -> None:
    run = kit.run(algorithm={"name": kit.package("noting", "Path(os.environ['SEEN'], str(os.getpid())).touch()")})
    now = time.monotonic()
    kit.monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: now))
    driver = Driver(1, idle=300.0)
    driver.pool.submit(kit.job(run, 0, allowed=["noting"]))
    assert isinstance(driver.next(), JobFinished)
    driver.pool.repair()
    (first,) = driver.pool.processes  # it has not been idle for long
    now += 300.0
    driver.pool.repair()
    assert driver.pool.processes == []
    assert not psutil.pid_exists(first)
    driver.pool.submit(kit.job(run, 1, allowed=["noting"]))
    event = driver.next()
    assert isinstance(event, JobFinished)
    assert driver.restarts == []
    assert len(list(seen.iterdir())) == 2
    driver.pool.close()


def test_a_process_at_work_is_not_idle(kit: Kit) -> None:
    run = kit.run(algorithm={"name": kit.package("slow", "time.sleep(0.5)")})
    driver = Driver(1, idle=0.1)
    driver.pool.submit(kit.job(run, 0, allowed=["slow"]))
    end = time.monotonic() + 60
    while not driver.handle_all():
        assert time.monotonic() < end
        driver.pool.repair()
        time.sleep(0.05)
    assert isinstance(driver.next(), JobFinished)
    driver.pool.close()
