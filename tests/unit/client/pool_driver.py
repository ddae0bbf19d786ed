"""Runs a worker pool in a test's own thread."""

from __future__ import annotations

import queue
from collections.abc import Callable

import psutil

from fedquilt_client.worker_pool import (
    JobEvent,
    JobProgress,
    JobRestarted,
    WorkerPool,
)

COUNT = "n = len(os.listdir(os.environ['SEEN'])); Path(os.environ['SEEN'], str(n)).touch()\n"


class Driver:
    """A pool, and the thread that handles what its processes say."""

    def __init__(self, workers: int, idle: float = 300.0) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.events: list[JobEvent] = []
        self.pool = WorkerPool(workers, 1, self.posted.put, self.events.append, idle=idle)
        self.restarts: list[JobRestarted] = []

    def next(self) -> JobEvent:
        """The next event that means something, but progress and restarts, which are kept."""
        while True:
            while not self.events:
                self.posted.get(timeout=60)()
            event = self.events.pop(0)
            if isinstance(event, JobRestarted):
                self.restarts.append(event)
            elif not isinstance(event, JobProgress):
                return event

    def handle_all(self) -> list[JobEvent]:
        """All that follows from what has been posted by now, and was not taken before."""
        while not self.posted.empty():
            self.posted.get()()
        return self.events


def workers_of_this_process() -> list[psutil.Process]:
    """Return the children that were forked from this process."""
    own = psutil.Process()
    return [child for child in own.children(recursive=True) if child.cmdline() == own.cmdline()]
