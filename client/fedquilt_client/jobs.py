"""Runs the tasks of this board: from the manifest of an exchange through downloads and training to the replies."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from fedquilt_client.capacity import lower_limit
from fedquilt_client.downloads import Downloads
from fedquilt_client.records import StoredReply
from fedquilt_client.reports import out_of_memory_message
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import AgentStore, RunStore
from fedquilt_client.uploads import Uploads
from fedquilt_client.worker_pool import (
    ATTEMPTS,
    JobEvent,
    JobFailed,
    JobFinished,
    JobInputDamaged,
    JobOutOfMemory,
    JobProgress,
    Post,
    WorkerPool,
)
from fedquilt_common.errors import PayloadError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.training_jobs import CheckedFile, Job
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
    """The run that this board takes part in.

    Attributes:
        given_up: tasks that failed or were stopped since the last manifest.
        damages: how often a patch on disk was damaged, by digest.
        may_go_back: the coordinator has restarted, so its next manifest may be of an earlier round.
    """

    store: RunStore
    downloads: Downloads
    uploads: Uploads
    round: RoundMessage | None = None
    given_up: set[TaskId] = field(default_factory=set)
    damages: Counter[str] = field(default_factory=Counter)
    may_go_back: bool = False

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
        self._post = post
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
            self._settings.name,
            self._transport,
            self._topics,
            store.blob,
            self._replace_reply,
            experiment.chunk,
            experiment.speedup,
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
        if run.round is not None and message.round < run.round.round and not run.may_go_back:
            return  # the broker has lost its newest messages; only a restarted coordinator goes back
        before, run.round, run.may_go_back = run.round, message, False
        if before is None or _tasks_of(before) != _tasks_of(message):
            self._open_exchange(run, message)
        self._review(run, message)
        self.plan()

    def _open_exchange(self, run: _CurrentRun, message: RoundMessage) -> None:
        task_ids = self._task_ids(message)
        self._pool.cancel(lambda job: (job.client, job.fingerprint) not in task_ids)
        self.progress = {job.client: self.progress.get(job.client, 0.0) for job in self._pool.jobs}
        run.damages.clear()
        run.downloads.want(_patches(message, [task for _, task in self._own_tasks(message)]))

    def _review(self, run: _CurrentRun, message: RoundMessage) -> None:
        """Retry failed tasks and offer settled replies again: no refusal of before need hold for this manifest."""
        task_ids = self._task_ids(message)
        run.given_up.clear()
        run.uploads.review(lambda reply: (reply.client, reply.task) in task_ids)

    def _task_ids(self, message: RoundMessage) -> set[TaskId]:
        return {(client, message.fingerprint(task, client)) for client, task in self._own_tasks(message)}

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
        if reply is not None and receipt.outcome not in ("accepted", "duplicate"):
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
            patches=[_checked(store, message.patches[i]) for i in task.patches],
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
                run.uploads.offer(_commit(run.store, event), intact=True)
            case JobOutOfMemory(_, need):
                limit = lower_limit(run.store.limit, need)
                log.warning("%s", out_of_memory_message(job, need, limit))
                self._pool.submit(job)
            case JobInputDamaged(_, path):
                self._replace_input(run, job, path)
            case JobFailed(_, reason):
                self._give_up(run, job, reason)

    def _give_up(self, run: _CurrentRun, job: Job, reason: str) -> None:
        """Report a failed task; the next manifest retries it."""
        self.progress.pop(job.client, None)
        run.given_up.add((job.client, job.fingerprint))
        log.error("client %d, round %d: %s", job.client, job.round, reason)
        self._report_failure(run.id, job, reason)

    def _replace_input(self, run: _CurrentRun, job: Job, path: Path) -> None:
        """Download a damaged patch again, and give up if the disk damages it each time.

        Raises:
            RunFolderError: the damaged file is the client's private memory, which exists nowhere else.
        """
        if job.memory is not None and job.memory.path == path:
            raise RunFolderError(
                f"{path}, the private memory of client {job.client}, is damaged: restore the file from a backup, or "
                f"delete the folder {path.parent}; then the client starts without memory"
            )
        run.damages[path.name] += 1
        if run.damages[path.name] >= ATTEMPTS:
            self._give_up(run, job, f"this board's disk damaged a patch {ATTEMPTS} times: check the disk")
            return
        log.warning("%s is damaged or missing: downloading it again", path)
        run.downloads.fetch_again(path.name)
        self.plan()  # another client's job may have replaced the patch already

    def _replace_reply(self, reply: StoredReply) -> None:
        """Train a reply again whose file is damaged, from the memory that its task names: the same bits come out."""
        if self._run is None:
            return
        log.warning(
            "client %d, round %d: its stored reply is damaged; training it again", reply.client, reply.round
        )  # fmt: skip
        self._run.store.forget(reply)
        self._post(self.plan)

    # -- connection ----------------------------------------------------------------------------

    def reconnect(self, session_present: bool) -> None:
        """Subscribe to the run's topics again, and ask at once for the missing receipt."""
        if self._run is not None:
            self._run.downloads.reconnect(session_present)
            self._run.uploads.probe_now()

    def greet_coordinator(self) -> None:
        """Ask the coordinator for the missing receipt, because it has restarted, and follow it if it went back."""
        if self._run is not None:
            self._run.may_go_back = True
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


def _checked(store: RunStore, patch: PatchMessage) -> CheckedFile:
    return CheckedFile(store.patch(patch.digest), patch.digest)


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
