"""Which tasks one job does together: short ones whose replies may be added up.

A reply costs a training process and its agent about a millisecond in files and messages. Short tasks take less, so a
joint job does many of them and writes one file, their sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Final

from fedquilt_client.current_run import CurrentRun
from fedquilt_client.settings import AgentSettings
from fedquilt_client.sum_pools import can_be_summed
from fedquilt_client.tasks import OpenTask
from fedquilt_client.worker_pool import JobFinished
from fedquilt_common.training_jobs import Job

LONGEST_SECONDS: Final = 0.1
"""Expected time of a joint job. It may take longer to cancel than a single one, and a crash loses all of it."""
MOST_TASKS: Final = 64
BYTES_PER_TASK: Final = 5_000
"""A joint job has at least one task for each 5,000 bytes of the model. It saves about 0.8 ms a task, but a sum of
trained models takes about 0.1 ms for each 1,000 bytes, to write and to read (``benchmarks/sum_costs.py``)."""


def may_join(run: CurrentRun, task: OpenTask) -> bool:
    """Return whether a joint job may do a task: its reply may be added up, and its client keeps nothing."""
    return (
        run.store.is_memoryless
        and task.message.id == run.exchange
        and can_be_summed(task)
        and task.id not in run.apart
        and run.samples.job_data(task.client) is None
    )


class JointJobs:
    """Divides tasks among jobs by the time that such tasks have taken.

    Args:
        settings: of the agent, which adds replies up if it is a relay, and has training processes that share the jobs.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._is_relay, self._workers = settings.relay, settings.workers
        self._seconds: dict[str, float] = {}

    def awaits_first(self, kind: str) -> bool:
        """Whether tasks of a kind wait for the first of them, which shows how long they take."""
        return self._is_relay and kind not in self._seconds

    def note(self, finished: JobFinished) -> None:
        """Note how long a job took."""
        if finished.seconds is not None:
            self._seconds[finished.job.kind] = finished.seconds / (finished.result.done or 1)

    def divide(self, run: CurrentRun, tasks: Iterable[OpenTask], pending: Collection[Job]) -> list[list[OpenTask]]:
        """Return the tasks of each job that can start: those of a joint one have the same inputs, in client order.

        Args:
            run: of the tasks.
            tasks: those that are ready.
            pending: the jobs that have not finished.
        """

        def sort_of(task: OpenTask) -> tuple[bool, int]:
            return may_join(run, task), id(task.task)

        if not self._is_relay:
            return [[task] for task in tasks]
        jobs = []
        for (joins, _), some in groupby(tasks, key=sort_of):
            same = list(some)
            if can_be_summed(same[0]) and self.awaits_first(kind := same[0].task.kind):
                under_way = sum(job.kind == kind for job in pending)
                jobs += [[task] for task in same[: max(0, self._workers - under_way)]]
            elif joins:
                same.sort(key=lambda task: task.client)
                groups = _divide(same, self._most(same))
                jobs += [one for group in groups for one in (_divide(group, 1) if _is_costly(group) else [group])]
            else:
                jobs += [[task] for task in same]
        return jobs

    def _most(self, same: list[OpenTask]) -> int:
        """Return how many of these tasks a joint job does."""
        quick = int(LONGEST_SECONDS / max(self._seconds[same[0].task.kind], 1e-6))
        fair = -(-len(same) // self._workers)
        return max(1, min(MOST_TASKS, quick, fair))


def _is_costly(tasks: Sequence[OpenTask]) -> bool:
    """Whether the sum of a joint job of these tasks takes longer than the files of their replies."""
    return sum(patch.size for patch in tasks[0].patches) > BYTES_PER_TASK * len(tasks)


def _divide(tasks: Sequence[OpenTask], most: int) -> list[list[OpenTask]]:
    """Return the tasks in groups of at most ``most``."""
    return [list(tasks[first : first + most]) for first in range(0, len(tasks), most)]
