"""Runs the tasks of this board: from the manifest of an exchange through downloads and training to the replies."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from fedquilt_client.capacity import lower_limit
from fedquilt_client.downloads import Downloads
from fedquilt_client.reports import out_of_memory_message
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import AgentStore, RunStore, StoredReply
from fedquilt_client.uploads import Uploads
from fedquilt_client.worker import Job
from fedquilt_client.worker_pool import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobOutOfMemory,
    JobProgress,
    Post,
    WorkerPool,
)
from fedquilt_common.errors import PayloadError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.messages import (
    MissingMessage,
    PatchMessage,
    ReceiptMessage,
    RoundMessage,
    RunMessage,
    StopMessage,
    TaskMessage,
)
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import MqttMessage, Transport

log = logging.getLogger(__name__)

TaskId = tuple[int, str]
"""A client and the fingerprint of its task."""
ReportFailure = Callable[[str, Job, str], None]
"""Publishes that a task of a run cannot be done: (run, job, reason)."""


@dataclass
class _CurrentRun:
    """The run that this board takes part in."""

    store: RunStore
    downloads: Downloads
    uploads: Uploads
    round: RoundMessage | None = None
    given_up: set[TaskId] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.store.run.run


class Jobs:
    """Trains the clients' tasks of the open exchange, and sends their replies.

    Args:
        post: runs a callable in the agent's thread; all methods of this class run in that thread.
        report_failure: publishes that a task cannot be done.
    """

    def __init__(
        self,
        settings: AgentSettings,
        store: AgentStore,
        transport: Transport,
        topics: Topics,
        post: Post,
        report_failure: ReportFailure,
    ) -> None:
        self._settings = settings
        self._store = store
        self._transport = transport
        self._topics = topics
        self._report_failure = report_failure
        self._pool = WorkerPool(settings.workers, settings.threads, post, self._take_event)
        self._run: _CurrentRun | None = None
        self._early_round: RoundMessage | None = None
        self.started = 0
        """Jobs that were given to the training processes so far."""
        self.progress: dict[int, float] = {}
        """Clients in training, and how far each is, from 0 to 1."""

    @property
    def busy(self) -> bool:
        """Whether any task is in training or waits for a free process."""
        return bool(self._pool.jobs)

    @property
    def run(self) -> str | None:
        """Identifier of the current run."""
        return self._run.id if self._run else None

    def close(self) -> None:
        """End all training processes."""
        self._pool.close()

    # -- runs ----------------------------------------------------------------------------------

    def enter_run(self, message: RunMessage) -> None:
        """Take part in a run from now on, and leave any other.

        Raises:
            PayloadError: the experiment is not valid for this version of fedquilt.
        """
        if self._run is not None and self._run.store.run == message:
            return
        experiment = _experiment(message)
        self.leave_run()
        store = self._store.open_run(message)
        downloads = Downloads(store, self._transport, self._topics, experiment.speedup)
        uploads = Uploads(
            self._settings.name, self._transport, self._topics, store.blob, experiment.chunk, experiment.speedup
        )
        self._run = _CurrentRun(store, downloads, uploads)
        if self._early_round is not None and self._early_round.run == message.run:
            self.open_round(self._early_round)
        log.info("run %s: %s on %s", message.run, experiment.algorithm.name, experiment.data.set)

    def leave_run(self) -> None:
        """Cancel all training, and unsubscribe from the run's topics."""
        self._pool.cancel(lambda _: True)
        self.progress.clear()
        if self._run is not None:
            self._run.downloads.close()
            self._run = None

    # -- exchanges -----------------------------------------------------------------------------

    def open_round(self, message: RoundMessage) -> None:
        """Work on an exchange from now on; its manifest may arrive before its run's message."""
        run = self._run
        if run is None or run.id != message.run:
            self._early_round = message
            return
        if run.round is not None and message.round < run.round.round:
            return  # the broker has lost its newest messages; rounds never go back
        before, run.round = run.round, message
        if before is None or _tasks_of(before) != _tasks_of(message):
            self._open_exchange(run, message)
        self.plan()

    def _open_exchange(self, run: _CurrentRun, message: RoundMessage) -> None:
        tasks = self._own_tasks(message)
        task_ids = {(client, message.fingerprint(task, client)) for client, task in tasks}
        self._pool.cancel(lambda job: (job.client, job.fingerprint) not in task_ids)
        self.progress = {job.client: self.progress.get(job.client, 0.0) for job in self._pool.jobs}
        run.given_up.clear()
        run.uploads.keep_only(lambda reply: (reply.client, reply.task) in task_ids)
        run.downloads.want(_patches(message, [task for _, task in tasks]))

    def _own_tasks(self, message: RoundMessage) -> list[tuple[int, TaskMessage]]:
        own = set(self._settings.clients)
        return [(client, task) for task in message.tasks for client in task.clients if client in own]

    def take_inbox(self, message: ReceiptMessage | MissingMessage | StopMessage) -> None:
        """Handle a message to this agent's inbox; ignore one of an earlier run."""
        run = self._run
        if run is None or run.id != message.run:
            return
        match message:
            case MissingMessage():
                run.uploads.send_missing(message)
            case ReceiptMessage():
                self._take_receipt(run, message)
            case StopMessage():
                self._stop(run, message)

    def _take_receipt(self, run: _CurrentRun, receipt: ReceiptMessage) -> None:
        reply = run.uploads.take_receipt(receipt)
        if reply is not None and receipt.outcome != "accepted":
            log.warning("client %d, round %d: %s: %s", reply.client, reply.round, receipt.outcome, receipt.reason)

    def _stop(self, run: _CurrentRun, stop: StopMessage) -> None:
        """Leave the tasks of an exchange that has closed without them."""
        message, clients = run.round, set(stop.clients)
        if message is None or (message.round, message.exchange) != (stop.round, stop.exchange):
            return
        log.info("clients %s stop: %s", sorted(clients), stop.reason)
        run.given_up |= {
            (client, message.fingerprint(task, client))
            for client, task in self._own_tasks(message)
            if client in clients
        }
        self._pool.cancel(lambda job: (job.client, job.fingerprint) in run.given_up)
        self.progress = {client: value for client, value in self.progress.items() if client not in clients}

    # -- tasks ---------------------------------------------------------------------------------

    def take_chunk(self, address: Address, message: MqttMessage) -> None:
        """Handle one chunk of a patch, and start the tasks whose patches are now complete."""
        if self._run is not None and self._run.downloads.take(address, message.header, message.payload):
            self.plan()

    def plan(self) -> None:
        """Advance every open task of this board's clients: send a stored reply, or start training."""
        run = self._run
        if run is None or run.round is None:
            return
        message = run.round
        busy = {(job.client, job.fingerprint) for job in self._pool.jobs}
        for client, task in self._own_tasks(message):
            task_id = client, message.fingerprint(task, client)
            stored = run.store.reply(client, message.round, message.exchange, task_id[1])
            if stored is not None:
                run.uploads.offer(stored)
            elif task_id not in busy | run.given_up and run.downloads.has(_patches(message, [task])):
                self._pool.submit(self._job(run.store, message, task, client))

    def _job(self, store: RunStore, message: RoundMessage, task: TaskMessage, client: int) -> Job:
        self.started += 1
        drafts = store.drafts(client, message.round, message.exchange)
        slices, own = message.sub_models(task)
        return Job(
            number=self.started,
            run_file=store.message,
            client=client,
            round=message.round,
            exchange=message.exchange,
            kind=task.kind,
            scalars=task.scalars,
            fingerprint=message.fingerprint(task, client),
            since=message.memory_of(client),
            labels=task.labels,
            patches=[store.patch(message.patches[i].digest) for i in task.patches],
            slices=slices,
            slice=own,
            memory=store.memory(client, message.memory_of(client)),
            reply=drafts.reply,
            memory_out=drafts.memory,
            allowed=list(self._settings.allow_import),
            budget=self._settings.budget,
            limit_file=store.limit,
            sharing=self._settings.workers,
        )

    def _take_event(self, event: JobEvent) -> None:
        run, job = self._run, event.job
        if run is None:
            return
        match event:
            case JobProgress(_, value):
                self.progress[job.client] = value
            case JobFinished():
                self.progress.pop(job.client, None)
                run.uploads.offer(_commit(run.store, event))
            case JobOutOfMemory(_, need):
                limit = lower_limit(run.store.limit, need)
                log.warning("%s", out_of_memory_message(job, need, limit))
                self._pool.submit(job)
            case JobFailed(_, reason):
                self.progress.pop(job.client, None)
                run.given_up.add((job.client, job.fingerprint))
                log.error("client %d, round %d: %s", job.client, job.round, reason)
                self._report_failure(run.id, job, reason)

    # -- connection ----------------------------------------------------------------------------

    def reconnect(self, session_present: bool) -> None:
        """Subscribe to the run's topics again, and ask at once for the missing receipt."""
        if self._run is not None:
            self._run.downloads.reconnect(session_present)
            self._run.uploads.probe_now()

    def greet_coordinator(self) -> None:
        """Ask the coordinator for the missing receipt, because it has restarted."""
        if self._run is not None:
            self._run.uploads.probe_now()

    def repair(self, *, connected: bool) -> None:
        """Kill unresponsive processes, and ask again for missing chunks and receipts; called regularly."""
        self._pool.kill_unresponsive()
        if self._run is not None and connected:
            self._run.downloads.repair()
            self._run.uploads.advance()


def _experiment(message: RunMessage) -> Experiment:
    try:
        return Experiment.model_validate_json(json.dumps(message.experiment))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise PayloadError(f"run {message.run}: its experiment is not valid here: {reason}") from None


def _commit(store: RunStore, finished: JobFinished) -> StoredReply:
    """Make a reply and the private memory after it durable, in one step."""
    job = finished.job
    reply = StoredReply(
        store.run.run,
        job.client,
        job.round,
        job.exchange,
        job.fingerprint,
        f"reply-{job.round}.{job.exchange}-{finished.digest[:16]}",
        finished.digest,
        finished.size,
        finished.head,
    )
    return store.commit(reply, store.drafts(job.client, job.round, job.exchange), job.since, memory=finished.memory)


def _tasks_of(message: RoundMessage) -> tuple[object, ...]:
    """Return all parts of a manifest that determine its tasks."""
    return message.round, message.exchange, message.patches, message.tasks, message.slices, message.since


def _patches(message: RoundMessage, tasks: list[TaskMessage]) -> list[PatchMessage]:
    return [message.patches[i] for i in sorted({i for task in tasks for i in task.patches})]
