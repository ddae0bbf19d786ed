"""Jobs that another thread does while the caller goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures


class BackgroundThread:
    """Does jobs one after another in a thread of its own, which the first job starts. For one caller.

    Only jobs that leave the interpreter save time, such as syncing a file.

    Args:
        name: name of the thread.
        most: jobs that wait or are under way at most: each may hold memory.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._pool: futures.ThreadPoolExecutor | None = None
        self._begun: list[futures.Future[None]] = []

    @property
    def is_done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return all(job.done() for job in self._begun)

    def begin(self, job: Callable[..., None], *given: object) -> None:
        """Begin with a job; if too many are under way, wait for the first of them."""
        self._begun = [one for one in self._begun if not one.done() or one.exception()]
        under_way = [one for one in self._begun if not one.done()]
        if len(under_way) >= self._most:
            futures.wait(under_way[:1])
        self._pool = self._pool or futures.ThreadPoolExecutor(1, self._name)
        self._begun.append(self._pool.submit(job, *given))

    def wait(self) -> None:
        """Wait for all jobs.

        Raises:
            Exception: what the first job that failed has raised.
        """
        begun, self._begun = self._begun, []
        futures.wait(begun)
        for job in begun:
            job.result()

    def close(self) -> None:
        """End the thread, after the jobs that it has begun with."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
