"""Runs the tasks of this board: from the manifest of an exchange through downloads and training to the replies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedquilt_client import reports
from fedquilt_client.capacity import lower_limit
from fedquilt_client.current_run import CurrentRun, commit_finished, discard_reply, replace_input
from fedquilt_client.downloads import Downloads
from fedquilt_client.energy import EnergyMeter
from fedquilt_client.joint_jobs import JointJobs
from fedquilt_client.records import StoredReply
from fedquilt_client.relay import make_uploads
from fedquilt_client.sample_supply import SampleSupply
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import AgentStore
from fedquilt_client.tasks import OpenTask, TaskId, make_job, open_tasks, read_experiment, task_id
from fedquilt_client.worker_pool import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobInputDamaged,
    JobOutOfMemory,
    JobProgress,
    JobRestarted,
    Post,
    WorkerPool,
)
from fedquilt_common.errors import RunFolderError
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.messages import (
    MEMORY_LOST,
    OUT_OF_MEMORY,
    WORKER_RESTARTED,
    MissingMessage,
    ReceiptMessage,
    RunMessage,
    StopMessage,
)
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import MqttMessage, Transport

log = logging.getLogger(__name__)


class Jobs:
    """Trains the clients' tasks of the open exchange, and sends their replies.

    Args:
        post: runs a callable in the agent's thread; all methods of this class run in that thread.
        report_failure: publishes that a task cannot be done.
        report_notice: publishes what happened to a task that goes on.
        meter: counts the energy of the tasks; None: it is unknown.
    """

    def __init__(
        self,
        settings: AgentSettings,
        store: AgentStore,
        transport: Transport,
        topics: Topics,
        post: Post,
        report_failure: reports.ReportFailure,
        report_notice: reports.ReportNotice = lambda *_: None,
        meter: EnergyMeter | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._transport, self._topics = transport, topics
        self._report_failure = report_failure
        self._report_notice = report_notice
        self._post = post
        self._pool = WorkerPool(settings.workers, settings.threads, post, self._take_event, meter, settings.idle)
        self._joint = JointJobs(settings)
        self._run: CurrentRun | None = None
        self._early_round: RoundMessage | None = None
        self.started = 0
        """Tasks that were given to the training processes so far."""
        self.progress: dict[int, float] = {}
        """Clients in training, and how far each is, from 0 to 1."""

    @property
    def busy(self) -> bool:
        """Whether any task is in training or waits for a free process."""
        return bool(self._pool.jobs)

    @property
    def processes(self) -> list[int]:
        """The ids of the training processes."""
        return self._pool.processes

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
            RunFolderError: as ``plan`` does.
        """
        if self._run is not None and self._run.store.run == message:
            return
        experiment = read_experiment(message)
        self.leave_run()
        store = self._store.open_run(message)
        downloads = Downloads(store, self._transport, self._topics, experiment.speedup)
        uploads = make_uploads(
            self._settings, store, experiment, self._transport, self._topics, self._replace_reply, lambda: self._run
        )
        folder = self._store.samples
        samples = SampleSupply.for_run(
            message, folder, self._settings, self._transport, self._topics, self._post, self.plan
        )
        self._run, self._joint = CurrentRun(store, downloads, uploads, samples), JointJobs(self._settings)
        if self._early_round is not None and self._early_round.run == message.run:
            self.open_round(self._early_round, retained=True)
        log.info("run %s: %s on %s", message.run, experiment.algorithm.name, experiment.data.set)
        if warning := reports.unused_clients_message(message.run, experiment.data.clients, self._settings.clients):
            log.warning("%s", warning)

    def leave_run(self) -> None:
        """Cancel all training, and unsubscribe from the run's topics."""
        self._pool.cancel(lambda _: True)
        self.progress.clear()
        if self._run is not None:
            self._run.downloads.close()
            self._run.samples.close()
            self._run = None

    # -- exchanges -----------------------------------------------------------------------------

    def open_round(self, message: RoundMessage, *, retained: bool) -> None:
        """Work on an exchange from now on; its manifest may arrive before its run's message.

        Args:
            message: the manifest.
            retained: the broker had stored it, so the coordinator may have published newer messages before.

        Raises:
            RunFolderError: as ``plan`` does.
        """
        run = self._run
        if run is None or run.id != message.run:
            self._early_round = message
            return
        if not run.manifest.take(message, retained=retained):
            return
        tasks = self._open_tasks(message)
        wanted = {task.id for task in tasks}
        if run.manifest.has_new_tasks:
            self._open_exchange(run, tasks, wanted)
        self._review(run, wanted)
        self.plan()

    def _open_exchange(self, run: CurrentRun, tasks: list[OpenTask], wanted: set[TaskId]) -> None:
        self._pool.cancel(lambda job: not wanted.issuperset(job.task_ids))
        clients = [client for job in self._pool.jobs for client, _ in job.task_ids]
        self.progress = {client: self.progress.get(client, 0.0) for client in clients}
        run.store.keep_joint({task.id for task in tasks if task.message.id == run.exchange})
        run.apart &= wanted
        run.downloads.want(patch for task in tasks for patch in task.patches)

    def _review(self, run: CurrentRun, wanted: set[TaskId]) -> None:
        """Retry failed tasks and offer settled replies again: an earlier refusal may not apply to this manifest."""
        run.given_up.clear()
        run.damages.clear()
        run.samples.retry()
        run.uploads.review(lambda reply: (reply.client, reply.task) in wanted)

    def _open_tasks(self, message: RoundMessage) -> list[OpenTask]:
        return open_tasks(message, self._settings.clients)

    def take_inbox(self, message: ReceiptMessage | MissingMessage | StopMessage) -> None:
        """Handle a message to this agent's inbox; ignore one of an earlier run.

        Raises:
            PayloadError: the bitmap of missing chunks is not valid.
        """
        run = self._run
        if run is None or run.id != message.run:
            return
        match message:
            case MissingMessage():
                run.uploads.send_missing(message)
            case ReceiptMessage():
                for receipt in message.divide():
                    self._take_receipt(run, receipt)
            case StopMessage():
                self._stop(run, message)

    def _take_receipt(self, run: CurrentRun, receipt: ReceiptMessage) -> None:
        reply = run.uploads.take_receipt(receipt)
        if reply is not None and receipt.outcome not in ("accepted", "duplicate"):
            log.warning("client %d, round %d: %s: %s", reply.client, reply.round, receipt.outcome, receipt.reason)

    def _stop(self, run: CurrentRun, stop: StopMessage) -> None:
        """Leave the tasks of an exchange that has closed without them."""
        message, clients = run.round, set(stop.clients)
        if message is None or message.id != (stop.round, stop.exchange):
            return
        log.info("clients %s stop: %s", sorted(clients), stop.reason)
        run.given_up |= {task.id: "" for task in self._open_tasks(message.alone()) if task.client in clients}
        self._pool.cancel(lambda job: not run.given_up.keys().isdisjoint(job.task_ids))
        self.progress = {client: value for client, value in self.progress.items() if client not in clients}
        self._post(self.plan)  # a joint job also had other clients

    # -- tasks ---------------------------------------------------------------------------------

    def take_chunk(self, address: Address, message: MqttMessage) -> None:
        """Handle one chunk of a patch, and start the tasks whose patches are now complete.

        Raises:
            PayloadError: the message is not a chunk of a patch.
            RunFolderError: a patch does not fit on the disk, or as ``plan`` does.
        """
        if self._run is not None and self._run.downloads.take(address, message.header, message.payload):
            self.plan()

    def take_samples(self, message: MqttMessage) -> None:
        """Handle one chunk of samples, and start the tasks whose samples are now complete.

        Raises:
            PayloadError: the message is not a chunk of samples that this board requested.
            RunFolderError: the disk is full or broken, or as ``plan`` does.
        """
        if self._run is not None and self._run.samples.take(message.header, message.payload):
            self.plan()

    def plan(self) -> None:
        """Advance every open task of this board's clients: send a stored reply, or start training.

        Raises:
            RunFolderError: the private memory of every client of this agent is damaged.
        """
        run = self._run
        if run is None or run.round is None:
            return
        closed = set(run.given_up).union(*(job.task_ids for job in self._pool.jobs))
        ready = []
        for task in self._open_tasks(run.round):
            if task.id not in closed:
                with self._give_up_if_damaged(run, task.id):
                    ready += [task] if not run.offer_stored(task) and self._has_inputs(run, task) else []
        for tasks in (jobs := self._joint.divide(run, ready, self._pool.jobs)):
            with self._give_up_if_damaged(run, tasks[0].id):
                self._start(run, tasks)
        if any(tasks[0].id in run.given_up for tasks in jobs):
            self._post(self.plan)  # others may wait for a task that has not started

    def _has_inputs(self, run: CurrentRun, task: OpenTask) -> bool:
        """Whether everything that a task needs is here; gives it up if its samples cannot be used."""
        if reason := run.samples.problem(task.client):
            self._give_up(run, task.id, reason)
            return False
        return run.downloads.has(task.patches) and run.samples.has(task.client)

    def _start(self, run: CurrentRun, tasks: list[OpenTask]) -> None:
        self.started += len(tasks)
        data = run.samples.job_data(tasks[0].client)
        self._pool.submit(make_job(self.started, tasks, run.store, self._settings, data))

    def _take_event(self, event: JobEvent) -> None:
        run, job = self._run, event.job
        if run is None:
            return
        match event:
            case JobFailed() | JobOutOfMemory() | JobInputDamaged() if job.members:
                log.info("clients %s: their joint job failed; each task is done by itself", [c for c, _ in job.members])
                run.apart.update(job.members)  # by itself, each of them fails with a reason of its own
                self.plan()
            case JobProgress(_, value):
                self.progress[job.client] = value
            case JobFinished():
                self._finish(run, event)
            case JobOutOfMemory(_, need):
                limit = lower_limit(run.store.limit, need)
                self._notice(run, OUT_OF_MEMORY, reports.out_of_memory_message(job, need, limit), job)
                self._pool.submit(job)
            case JobRestarted(_, reason):
                self._notice(run, WORKER_RESTARTED, f"client {job.client}, round {job.round}: {reason}", job)
            case JobInputDamaged(_, path):
                self._replace_input(run, job, path)
            case JobFailed(_, reason, declined):
                self._give_up(run, task_id(job), reason, declined=declined)
                if self._joint.awaits_first(job.kind):
                    self.plan()

    def _notice(self, run: CurrentRun, kind: str, text: str, job: Job) -> None:
        log.warning("%s", text)
        self._report_notice(kind, text, job, run.id)

    def _finish(self, run: CurrentRun, event: JobFinished) -> None:
        for client, _ in event.job.task_ids:
            self.progress.pop(client, None)
        if lost := run.store.note_memory(kept=not event.result.memoryless):
            self._notice(run, MEMORY_LOST, reports.lost_memory_message(lost), event.job)
        others_wait = self._joint.awaits_first(event.job.kind) or event.result.done < len(event.job.members)
        self._joint.note(event)
        with self._give_up_if_damaged(run, task_id(event.job)):
            if (reply := commit_finished(run.store, event)) is None:
                self._pool.submit(event.job)
            else:
                run.uploads.offer(reply, intact=True)
            run.damaged_clients.discard(event.job.client)
        if others_wait:
            self.plan()

    def _give_up(self, run: CurrentRun, task: TaskId, reason: str, *, declined: bool = False) -> None:
        """Report a failed task of the open exchange; the next manifest retries it."""
        self.progress.pop(task[0], None)
        if declined:
            run.declined.add(task)
        else:
            run.declined.discard(task)
        run.given_up[task] = reason
        log.error("client %d: %s", task[0], reason)
        self._report(run, task, reason)

    def _report(self, run: CurrentRun, task: TaskId, reason: str) -> None:
        self._report_failure(run.id, task[0], run.exchange_of(task), reason, task in run.declined)

    def report_failures(self) -> None:
        """Report the failed tasks of the open exchange again: the coordinator may not have received a report."""
        if (run := self._run) is None:
            return
        for task, reason in run.given_up.items():
            if reason:
                self._report(run, task, reason)

    @contextmanager
    def _give_up_if_damaged(self, run: CurrentRun, task: TaskId) -> Iterator[None]:
        """Give up a task if the block finds damage that only a person can repair; the other clients work on.

        Raises:
            RunFolderError: such damage was found for every client of this agent.
        """
        try:
            yield
        except RunFolderError as error:
            self._give_up(run, task, str(error))
            run.damaged_clients.add(task[0])
            if run.damaged_clients >= set(self._settings.clients):
                raise

    def _replace_input(self, run: CurrentRun, job: Job, path: Path) -> None:
        with self._give_up_if_damaged(run, task_id(job)):
            if reason := replace_input(run, job, path):
                self._give_up(run, task_id(job), reason)
        self.plan()  # another job's report may have replaced the patch already

    def _replace_reply(self, reply: StoredReply) -> None:
        """Train a reply with a damaged file again, from the memory that its task names. A joint job has no memory.

        The same arrays and memory come out; only the measured numbers in the reply's header differ.
        """
        run, tasks = self._run, set(reply.task_ids)
        if run is None or run.round is None or tasks.isdisjoint(asked.id for asked in self._open_tasks(run.round)):
            return  # it cannot count any more
        with self._give_up_if_damaged(run, (reply.client, reply.task)):
            discard_reply(run, reply)
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
            self._run.manifest.may_go_back = True
            self._run.uploads.probe_now()

    def repair(self, *, connected: bool) -> None:
        """Kill unresponsive processes, and ask again for missing chunks and receipts; called regularly."""
        self._pool.repair()
        if self._run is not None and connected:
            self._run.downloads.repair()
            self._run.samples.repair()
            self._run.uploads.advance()
