"""The experiment of a run, the tasks of a manifest that are for this board, and the job that each becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import RunStore
from fedquilt_common.errors import PayloadError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.rejections import first_problem
from fedquilt_common.training_jobs import CheckedFile, Job, JobData
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage

TaskId = tuple[int, str]
"""A client and the fingerprint of its task."""


@dataclass(frozen=True)
class OpenTask:
    """What one client of this board is asked to do; ``message`` is the manifest of its own exchange."""

    client: int
    fingerprint: str
    task: TaskMessage
    message: RoundMessage

    @property
    def id(self) -> TaskId:
        """The client and the fingerprint."""
        return self.client, self.fingerprint

    @property
    def patches(self) -> list[PatchMessage]:
        """The patches that the task needs, in the order of the task."""
        return [self.message.patches[i] for i in self.task.patches]


def read_experiment(message: RunMessage) -> Experiment:
    """Return the experiment of a run.

    Raises:
        PayloadError: it is not valid for this version of fedquilt.
    """
    try:
        return Experiment.model_validate_json(json.dumps(message.experiment))
    except ValidationError as error:
        reason = first_problem(error)
        raise PayloadError(f"run {message.run}: its experiment is not valid here: {reason}") from None


def open_tasks(message: RoundMessage, clients: Iterable[int]) -> list[OpenTask]:
    """Return the tasks of these clients, in the order of the manifest: those that go on come first."""
    own = set(clients)
    return [
        OpenTask(client, fingerprint, task, one)
        for one in (*message.earlier, message)
        for task in one.tasks
        for client, fingerprint in one.fingerprints(task, [client for client in task.clients if client in own]).items()
    ]


def has_same_tasks(one: RoundMessage, other: RoundMessage) -> bool:
    """Return whether two manifests agree in all that determines their tasks."""
    return _content(one) == _content(other)


def _content(message: RoundMessage) -> tuple[object, ...]:
    return (*message.id, message.patches, message.tasks, message.slices, message.since, message.earlier)


def make_job(
    number: int, tasks: Sequence[OpenTask], store: RunStore, settings: AgentSettings, data: JobData | None = None
) -> Job:
    """Return the job of a task, or a joint one of several.

    Args:
        number: unique among the jobs of this agent.
        tasks: one task, or the same of several clients; the patches are on disk.
        store: where its files are.
        settings: the limits of this board.
        data: the client's samples; None: the board has the data set.

    Raises:
        RunFolderError: the client's record or private memory is damaged, or cannot be read.
    """
    task = tasks[0]
    message, client = task.message, task.client
    drafts = store.drafts(number)
    slices, own = message.sub_models(task.task)
    since = message.memory_of(client)
    return Job(
        number=number,
        run_file=store.message,
        client=client,
        round=message.round,
        exchange=message.exchange,
        kind=task.task.kind,
        scalars=task.task.scalars,
        fingerprint=task.fingerprint,
        since=since,
        labels=task.task.labels,
        patches=[_patch_file(store, patch.digest) for patch in task.patches],
        slices=slices,
        slice=own,
        memory=store.memory(client, since),
        reply=drafts.reply,
        memory_out=drafts.memory,
        spare=store.spare,
        allowed=list(settings.allow_import),
        budget=settings.budget,
        limit_file=store.limit,
        sharing=settings.workers,
        measured=not settings.private,
        data=data,
        ledgers=store.ledgers,
        max_epsilon=settings.max_epsilon,
        max_delta=settings.max_delta,
        members=[one.id for one in tasks] if len(tasks) > 1 else [],
    )


def _patch_file(store: RunStore, digest: str) -> CheckedFile:
    path = store.patch(digest)
    return CheckedFile(path, digest, store.intact.find(path))


def task_id(job: Job) -> TaskId:
    """Return the task that a job is for, or the first one of a joint job."""
    return job.client, job.fingerprint


def is_patch_damaged(job: Job, path: Path) -> bool:
    """Return whether a job's patch is there and damaged; it is not there while it is downloaded again."""
    patch = next(file for file in job.patches if file.path == path)
    try:
        return path.exists() and not patch.is_intact()
    except OSError:  # the training process could read it
        return True
