"""What an agent holds of the run that it takes part in."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fedquilt_client.downloads import Downloads
from fedquilt_client.latest_manifest import LatestManifest
from fedquilt_client.records import JointReply, StoredReply, name_reply
from fedquilt_client.sample_supply import SampleSupply
from fedquilt_client.store import Drafts, RunStore, discard_drafts
from fedquilt_client.tasks import OpenTask, TaskId, is_patch_damaged, open_tasks
from fedquilt_client.uploads import Uploads
from fedquilt_client.worker_pool import ATTEMPTS, JobFinished
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.privacy.ledger import LedgerEntry, append_entries, ledger_file, measure_ledgers
from fedquilt_common.training_jobs import Job
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.round_messages import RoundMessage

log = logging.getLogger(__name__)


@dataclass
class CurrentRun:
    """The run that this board takes part in.

    Attributes:
        given_up: tasks that failed since the last manifest, with the reason, or were stopped, without one.
        declined: tasks that the client's privacy budget or the board's owner does not allow.
        apart: tasks that get jobs of their own, because a joint job with them failed or its sum was refused.
        damages: how often a patch on disk was damaged since the last manifest, by digest.
        damaged_clients: clients whose private memory, or the record of it, was damaged at their last task.
    """

    store: RunStore
    downloads: Downloads
    uploads: Uploads
    samples: SampleSupply
    manifest: LatestManifest = field(default_factory=LatestManifest)
    given_up: dict[TaskId, str] = field(default_factory=dict)
    declined: set[TaskId] = field(default_factory=set)
    apart: set[TaskId] = field(default_factory=set)
    damages: Counter[str] = field(default_factory=Counter)
    damaged_clients: set[int] = field(default_factory=set)

    @property
    def id(self) -> str:
        """Identifier of the run."""
        return self.store.run.run

    @property
    def round(self) -> RoundMessage | None:
        """The latest manifest; None before the first."""
        return self.manifest.message

    @property
    def exchange(self) -> ExchangeId | None:
        """Round and exchange of the manifest; None before the first."""
        return None if self.round is None else self.round.id

    def exchange_of(self, task: TaskId) -> ExchangeId:
        """Return round and exchange of a task of the manifest, or of one that goes on."""
        assert self.round is not None  # noqa: S101 - a task belongs to a manifest
        own = open_tasks(self.round, [task[0]])
        return next((one.message.id for one in own if one.id == task), self.round.id)

    def offer_stored(self, task: OpenTask) -> bool:
        """Offer the reply to a task if it is stored; returns whether it is."""
        message = task.message
        stored = self.store.reply(task.client, message.round, message.exchange, task.fingerprint)
        if stored is not None and stored.client == task.client:  # that of a joint job is the same for all its clients
            self.uploads.offer(stored)
        return stored is not None


def replace_input(run: CurrentRun, job: Job, path: Path) -> str:
    """Download a damaged input of a job again.

    Returns:
        Why its task is given up, because the disk damages a patch each time; else empty.

    Raises:
        RunFolderError: it is the client's private memory, which only a person can restore.
    """
    if job.memory is not None and job.memory.path == path:
        raise RunFolderError(
            f"{path}, the private memory of client {job.client}, is damaged: restore the file from a backup, "
            f"or delete its folder {path.parent.parent.name}/{path.parent.name}; then the client starts without memory"
        )
    if run.samples.fetch_again(path):
        log.warning("%s is damaged: downloading it again", path)
    elif is_patch_damaged(job, path):
        run.damages[path.name] += 1
        log.warning("%s is damaged: downloading it again", path)
        run.downloads.fetch_again(path.name)
        if run.damages[path.name] >= ATTEMPTS:
            return f"this board's disk damaged a patch {ATTEMPTS} times: check the disk"
    return ""


def discard_reply(run: CurrentRun, reply: StoredReply) -> None:
    """Forget a reply whose tasks must be done again: its file is damaged, or the sum of a joint job cannot travel.

    Raises:
        RunFolderError: the client's record is damaged.
    """
    if isinstance(reply, JointReply):
        log.warning("clients %s, round %d: training each again by itself", list(reply.clients), reply.round)
        run.apart.update(reply.task_ids)
    else:
        text = "client %d, round %d: its reply on disk is damaged; training it again"
        log.warning(text, reply.client, reply.round)
    run.store.forget(reply)


def _joint_reply(run: str, finished: JobFinished) -> JointReply:
    """Return the reply of a joint job, for the tasks that it has done."""
    job, result = finished.job, finished.result
    members = job.members[: result.done]
    return JointReply(
        run,
        job.client,
        job.round,
        job.exchange,
        job.fingerprint,
        job.reply.name,
        result.digest,
        result.size,
        clients=tuple(client for client, _ in members),
        tasks=tuple(fingerprint for _, fingerprint in members),
    )


def commit_finished(store: RunStore, finished: JobFinished) -> StoredReply | None:
    """Make a reply and the private memory after it durable, in one step; before, note what the task has spent.

    A task that repeats after a crash between the two has the same entry, so it spends once. The reply of a joint job is
    only held: its tasks are done again after a crash.

    Returns:
        The reply; None if the task must train again, because another has spent privacy on the same samples meanwhile.

    Raises:
        RunFolderError: the client's record or a ledger is damaged.
    """
    job, result, spent = finished.job, finished.result, finished.result.spent
    if job.members:
        return store.hold(_joint_reply(store.run.run, finished))
    if spent is not None:
        with report_disk_errors(store.ledgers):
            if spent.stale or measure_ledgers(store.ledgers, spent.seen) != spent.seen:
                discard_drafts(job)
                return None
            entries = [LedgerEntry.decode(entry) for entry in spent.entries]
            append_entries(ledger_file(store.ledgers, spent.ledger), entries)
    reply = StoredReply(
        store.run.run,
        job.client,
        job.round,
        job.exchange,
        job.fingerprint,
        name_reply(job.round, job.exchange, job.fingerprint, result.digest, result.head),
        result.digest,
        result.size,
        result.head,
    )
    return store.commit(reply, Drafts(job.reply, job.memory_out), job.since, memory=result.memory)
