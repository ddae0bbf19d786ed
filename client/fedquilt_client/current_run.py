"""What an agent holds of the run that it takes part in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fedquilt_client.downloads import Downloads
from fedquilt_client.records import StoredReply, name_reply
from fedquilt_client.sample_supply import SampleSupply
from fedquilt_client.store import RunStore
from fedquilt_client.tasks import TaskId, open_tasks
from fedquilt_client.uploads import Uploads
from fedquilt_client.worker_pool import JobFinished
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.privacy.ledger import LedgerEntry, append_entries, ledger_file, measure_ledgers
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.round_messages import RoundMessage


@dataclass
class CurrentRun:
    """The run that this board takes part in.

    Attributes:
        given_up: tasks that failed since the last manifest, with the reason, or were stopped, without one.
        declined: tasks that the client's privacy budget or the board's owner does not allow.
        damages: how often a patch on disk was damaged since the last manifest, by digest.
        damaged_clients: clients whose private memory, or the record of it, was damaged at their last task.
        may_go_back: the coordinator may have restarted since its last manifest, so the next one may be of an earlier
            round. A manifest that the broker retained may be older than the restart, so it leaves this as it is.
    """

    store: RunStore
    downloads: Downloads
    uploads: Uploads
    samples: SampleSupply
    round: RoundMessage | None = None
    given_up: dict[TaskId, str] = field(default_factory=dict)
    declined: set[TaskId] = field(default_factory=set)
    damages: Counter[str] = field(default_factory=Counter)
    damaged_clients: set[int] = field(default_factory=set)
    may_go_back: bool = True

    @property
    def id(self) -> str:
        """Identifier of the run."""
        return self.store.run.run

    def exchange_of(self, task: TaskId) -> ExchangeId:
        """Return round and exchange of a task of the manifest, or of one that goes on."""
        assert self.round is not None  # noqa: S101 - a task belongs to a manifest
        own = open_tasks(self.round, [task[0]])
        return next((one.message.id for one in own if one.id == task), self.round.id)


def commit_finished(store: RunStore, finished: JobFinished) -> StoredReply | None:
    """Make a reply and the private memory after it durable, in one step; before, note what the task has spent.

    A task that repeats after a crash between the two has the same entry, so it spends once.

    Returns:
        The reply; None if the task must train again, because another has spent privacy on the same samples meanwhile.

    Raises:
        RunFolderError: the client's record or a ledger is damaged.
    """
    job, spent = finished.job, finished.spent
    if spent is not None:
        with report_disk_errors(store.ledgers):
            if spent.stale or measure_ledgers(store.ledgers, spent.seen) != spent.seen:
                return None
            entries = [LedgerEntry.decode(entry) for entry in spent.entries]
            append_entries(ledger_file(store.ledgers, spent.digest), entries)
    reply = StoredReply(
        store.run.run,
        job.client,
        job.round,
        job.exchange,
        job.fingerprint,
        name_reply(job.round, job.exchange, job.fingerprint, finished.digest, finished.head),
        finished.digest,
        finished.size,
        finished.head,
    )
    return store.commit(reply, store.drafts(job.client, job.round, job.exchange), job.since, memory=finished.memory)
