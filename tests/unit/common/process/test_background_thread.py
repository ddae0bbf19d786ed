"""A background thread does jobs in order while the caller goes on; whoever waits learns of errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from fedquilt_common.process.background_thread import BackgroundThread


class Work:
    """Jobs that wait for ``go``."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.done: list[object] = []
        self.threads: set[threading.Thread] = set()

    def job(self, number: object) -> None:
        assert self.go.wait(60)
        self.threads.add(threading.current_thread())
        if isinstance(number, Exception):
            raise number
        self.done.append(number)


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.go.set()


@pytest.fixture
def thread(work: Work) -> Iterator[BackgroundThread]:
    with closing(BackgroundThread("test", 2)) as made:
        yield made
        work.go.set()


def test_the_caller_goes_on_and_waits_in_the_end(work: Work, thread: BackgroundThread) -> None:
    assert thread.is_done
    thread.begin(work.job, 1)
    thread.begin(work.job, 2)
    assert not thread.is_done
    assert work.done == []
    work.go.set()
    thread.wait()
    assert thread.is_done
    assert work.done == [1, 2]
    assert threading.current_thread() not in work.threads


def test_too_many_jobs_wait_for_the_first(work: Work, thread: BackgroundThread) -> None:
    thread.begin(work.job, 1)
    thread.begin(work.job, 2)
    threading.Timer(0.05, work.go.set).start()
    thread.begin(work.job, 3)
    assert work.done[:1] == [1]
    thread.wait()
    assert work.done == [1, 2, 3]


def test_whoever_waits_learns_of_the_first_error(work: Work, thread: BackgroundThread) -> None:
    work.go.set()
    for number in (ValueError("first"), 2, ValueError("second"), 4):
        thread.begin(work.job, number)
    with pytest.raises(ValueError, match="first"):
        thread.wait()
    assert thread.is_done
    assert work.done[0] == 2  # the jobs after it are done


def test_the_number_of_jobs_is_bounded_after_an_error(work: Work, thread: BackgroundThread) -> None:
    work.go.set()
    thread.begin(work.job, ValueError("first"))
    while not thread.is_done:
        time.sleep(0.001)
    work.go.clear()
    thread.begin(work.job, 1)
    thread.begin(work.job, 2)
    threading.Timer(0.05, work.go.set).start()
    thread.begin(work.job, 3)
    assert work.done[:1] == [1]


def test_closing_waits_and_leaves_no_thread(work: Work, thread: BackgroundThread) -> None:
    thread.begin(work.job, 1)
    threading.Timer(0.05, work.go.set).start()
    thread.close()
    assert work.done == [1]
    assert not any(one.is_alive() for one in work.threads)
