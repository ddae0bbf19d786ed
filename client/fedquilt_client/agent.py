"""The process on a board: says that it is there, fetches tasks, has them trained, sends the replies.

It moves bytes and keeps promises; it never imports torch. Everything happens in one thread that takes from one queue.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from fedquilt_client import hardware as board
from fedquilt_client.capacity import lower_limit
from fedquilt_client.downloads import Downloads
from fedquilt_client.reports import failed, telemetry, too_much
from fedquilt_client.store import AgentStore, RunStore, StoredReply
from fedquilt_client.uploads import Uploads
from fedquilt_client.worker import Job
from fedquilt_client.worker_pool import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobOutOfMemory,
    JobProgress,
    WorkerEvent,
    WorkerExited,
    WorkerMessage,
    WorkerPool,
)
from fedquilt_common import __version__
from fedquilt_common.errors import PayloadError, ProtocolError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.messages import (
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    MissingMessage,
    PatchMessage,
    ReceiptMessage,
    RoundMessage,
    RunMessage,
    StopMessage,
    TaskMessage,
    parse,
    parse_inbox,
)
from fedquilt_common.wire.topics import Address, Topics, check_name
from fedquilt_common.wire.transport import Connected, Deliver, Disconnected, MqttMessage, Transport, Will

log = logging.getLogger(__name__)

MakeTransport = Callable[[Deliver, Will], Transport]
WILL_DELAY: Final = 20
"""Seconds that a board may be away before the coordinator hears of it: a restart of the agent takes fewer."""
STEP_SECONDS: Final = 0.5
TELEMETRY_SECONDS: Final = 2.0
IDLE_TELEMETRY_SECONDS: Final = 30.0


@dataclass(frozen=True)
class AgentSettings:
    """One agent. ``memory`` is what it says to have and ``budget`` what training may take, in bytes; ``threads`` those
    of each worker. A ``private`` one says nothing of its resources."""

    name: str
    clients: tuple[int, ...]
    state: Path
    federation: str = "default"
    kind: str = "generic"
    workers: int = 1
    threads: int = 1
    memory: int | None = None
    budget: int | None = None
    private: bool = False
    allow_import: tuple[str, ...] = ()
    once: bool = False


@dataclass
class _Current:
    """The run that this agent takes part in."""

    store: RunStore
    downloads: Downloads
    uploads: Uploads
    round: RoundMessage | None = None


class Agent:
    """One agent; ``execute`` does its work until it is told to stop."""

    def __init__(self, settings: AgentSettings, make_transport: MakeTransport) -> None:
        self.settings = settings
        self.topics = Topics(settings.federation)
        self._events: queue.SimpleQueue[MqttMessage | Connected | Disconnected | WorkerEvent] = queue.SimpleQueue()
        name = check_name(settings.name, "agent")
        self._store = AgentStore(settings.state)
        self._boot = self._store.next_boot()
        self._gone = AgentPresence(agent=name, online=False, boot=self._boot)
        will = Will(self.topics.presence(name), self._gone.encode(), WILL_DELAY)
        self._transport = make_transport(self._events.put, will)
        self._pool = WorkerPool(settings.workers, settings.threads, self._events.put)
        self._current: _Current | None = None
        self._early: RoundMessage | None = None
        self._progress: dict[int, float] = {}
        self._given_up: set[tuple[int, str]] = set()
        self._job_number = 0
        self._epoch = -1
        self._telemetry_at = self._repair_at = 0.0
        self._connected = False
        self._ended = False

    def execute(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Work until ``should_stop``, or until the run ends when ``once``."""
        self._transport.connect()
        try:
            while not should_stop() and not (self._ended and self.settings.once):
                self._step()
        finally:
            self._pool.close()
            self._transport.close((self.topics.presence(self.settings.name), self._gone.encode()))
            self._store.release()

    def _step(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=STEP_SECONDS))
        if time.monotonic() >= self._repair_at:
            self._repair_at = time.monotonic() + STEP_SECONDS
            self._repair()
        if self._connected and time.monotonic() >= self._telemetry_at:
            self._send_telemetry()

    def _repair(self) -> None:
        self._pool.kill_unresponsive()
        if self._current is not None and self._connected:
            self._current.downloads.repair()
            self._current.uploads.advance()

    def _take(self, event: MqttMessage | Connected | Disconnected | WorkerEvent) -> None:
        match event:
            case MqttMessage():
                self._take_message(event)
                event.ack()
            case Connected(session_present):
                self._connected = True
                log.info("connected to the broker")
                self._on_connected(session_present)
            case Disconnected():
                self._connected = False
                log.warning("%s. %s; trying again", event.reason, event.advice)
            case WorkerExited() | WorkerMessage():
                self._take_job_event(self._pool.handle(event))

    def _on_connected(self, session_present: bool) -> None:
        settings = self.settings
        here = AgentPresence(
            agent=settings.name,
            online=True,
            boot=self._boot,
            clients=list(settings.clients),
            workers=settings.workers,
            profile=board.profile(settings.kind, settings.memory, private=settings.private),
            version=__version__,
        )
        self._transport.publish(self.topics.presence(settings.name), here.encode(), retain=True)
        self._transport.subscribe(self.topics.for_agent(settings.name))
        if self._current is not None:
            self._current.downloads.reconnected(session_present)
            self._current.uploads.hurry()

    # -- messages ------------------------------------------------------------------------------

    def _take_message(self, message: MqttMessage) -> None:
        try:
            address = self.topics.parse(message.topic)
            if address.kind in ("slices", "soft-labels"):
                self._take_chunk(address, message)
            elif message.payload:
                self._take_words(address, message)
        except ProtocolError as error:
            log.warning("ignored: %s", error)

    def _take_chunk(self, address: Address, message: MqttMessage) -> None:
        if self._current is not None and self._current.downloads.take(address, message.header, message.payload):
            self._plan()

    def _take_words(self, address: Address, message: MqttMessage) -> None:
        topic, payload = message.topic, message.payload
        match address.kind:
            case "run":
                self._on_run(parse(RunMessage, payload, topic))
            case "round":
                self._on_round(parse(RoundMessage, payload, topic))
            case "coordinator":
                self._on_coordinator(parse(CoordinatorPresence, payload, topic))
            case "inbox":
                self._on_inbox(parse_inbox(payload, topic))
            case "end":
                self._on_end(parse(EndMessage, payload, topic))

    def _on_run(self, run: RunMessage) -> None:
        self._ended = False
        if self._current is not None and self._current.store.run == run:
            return
        try:
            experiment = Experiment.model_validate_json(json.dumps(run.experiment))
        except ValidationError as error:
            raise PayloadError(f"run {run.run}: its experiment is not valid here: {error.errors()[0]['msg']}") from None
        self._leave_run()
        store = self._store.open_run(run)
        chunk = experiment.chunk
        self._current = _Current(
            store,
            Downloads(store, self._transport, self.topics, experiment.speedup),
            Uploads(self.settings.name, self._transport, self.topics, store.blob, chunk, experiment.speedup),
        )
        if self._early is not None and self._early.run == run.run:
            self._on_round(self._early)
        log.info("run %s: %s on %s", run.run, experiment.algorithm.name, experiment.data.set)

    def _leave_run(self) -> None:
        self._pool.cancel(lambda _: True)
        self._progress.clear()
        self._given_up.clear()
        if self._current is not None:
            self._current.downloads.close()
            self._current = None

    def _on_round(self, message: RoundMessage) -> None:
        current = self._current
        if current is None or current.store.run.run != message.run:
            self._early = message  # `run` and `round` may come in any order
            return
        if current.round is not None and message.round < current.round.round:
            return  # a broker that came back with an old memory; rounds never go back
        before, current.round = current.round, message
        if before is None or _question(before) != _question(message):
            self._begin(current, message)
        self._plan()

    def _begin(self, current: _Current, message: RoundMessage) -> None:
        mine = self._tasks(message)
        asked = {(client, message.fingerprint(task, client)) for client, task in mine}
        self._pool.cancel(lambda job: (job.client, job.fingerprint) not in asked)
        self._progress = {job.client: self._progress.get(job.client, 0.0) for job in self._pool.jobs}
        self._given_up.clear()
        current.uploads.leave_only(lambda reply: (reply.client, reply.task) in asked)
        current.downloads.want(_patches(message, [task for _, task in mine]))

    def _tasks(self, message: RoundMessage) -> list[tuple[int, TaskMessage]]:
        mine = set(self.settings.clients)
        return [(client, task) for task in message.tasks for client in task.clients if client in mine]

    def _on_coordinator(self, presence: CoordinatorPresence) -> None:
        back = presence.online and presence.epoch != self._epoch
        self._epoch = presence.epoch if presence.online else -1
        if back:
            self._telemetry_at = 0.0
        if back and self._current is not None:
            self._current.uploads.hurry()

    def _on_inbox(self, message: ReceiptMessage | MissingMessage | StopMessage) -> None:
        current = self._current
        if current is None or current.store.run.run != message.run:
            return  # about a run that is over
        match message:
            case MissingMessage():
                current.uploads.missing(message)
            case StopMessage():
                self._on_stop(current, message)
            case ReceiptMessage():
                self._on_receipt(current, message)

    def _on_receipt(self, current: _Current, receipt: ReceiptMessage) -> None:
        reply = current.uploads.receipt(receipt)
        if reply is not None and receipt.outcome != "accepted":
            log.warning("client %d, round %d: %s: %s", reply.client, reply.round, receipt.outcome, receipt.reason)

    def _on_stop(self, current: _Current, stop: StopMessage) -> None:
        """Leave the tasks of an exchange that has closed without us."""
        clients, exchange = set(stop.clients), (stop.round, stop.exchange)
        if current.round is None or (current.round.round, current.round.exchange) != exchange:
            return
        log.info("clients %s stop: %s", sorted(clients), stop.reason)
        tasks = [(client, task) for client, task in self._tasks(current.round) if client in clients]
        self._given_up |= {(client, current.round.fingerprint(task, client)) for client, task in tasks}
        self._pool.cancel(lambda job: (job.client, job.fingerprint) in self._given_up)
        self._progress = {client: value for client, value in self._progress.items() if client not in clients}

    def _on_end(self, end: EndMessage) -> None:
        if self._current is not None and self._current.store.run.run == end.run:
            log.info("run %s is over: %s", end.run, end.reason)
            self._leave_run()
            self._ended = True
        self._store.end_run(end.run)

    # -- tasks ---------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Bring every open task of our clients one step on: send a stored reply, or start training."""
        current = self._current
        if current is None or current.round is None or current.round.phase != "open":
            return
        message = current.round
        busy = {(job.client, job.fingerprint) for job in self._pool.jobs}
        for client, task in self._tasks(message):
            key = client, message.fingerprint(task, client)
            stored = current.store.reply(client, message.round, message.exchange, key[1])
            if stored is not None:
                current.uploads.offer(stored)
            elif key not in busy and key not in self._given_up and current.downloads.has(_patches(message, [task])):
                self._pool.submit(self._job(current.store, message, task, client))
                self._telemetry_at = min(self._telemetry_at, time.monotonic() + TELEMETRY_SECONDS)

    def _job(self, store: RunStore, message: RoundMessage, task: TaskMessage, client: int) -> Job:
        self._job_number += 1
        drafts = store.drafts(client, message.round, message.exchange)
        slices, own = message.sub_models(task)
        return Job(
            number=self._job_number,
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
            allowed=list(self.settings.allow_import),
            budget=self.settings.budget,
            limit_file=store.limit,
            sharing=self.settings.workers,
        )

    def _take_job_event(self, event: JobEvent | None) -> None:
        current = self._current
        if event is None or current is None:
            return
        job = event.job
        match event:
            case JobProgress(_, value):
                self._progress[job.client] = value
                return
            case JobFinished(_, done):
                self._progress.pop(job.client, None)
                reply = StoredReply(
                    current.store.run.run, job.client, job.round, job.exchange, job.fingerprint,
                    f"reply-{job.round}.{job.exchange}-{done.digest[:16]}", done.digest, done.size, done.head,
                )  # fmt: skip
                drafts = current.store.drafts(job.client, job.round, job.exchange)
                current.uploads.offer(current.store.commit(reply, drafts, job.since, memory=done.memory))
            case JobOutOfMemory(_, need):
                limit = lower_limit(current.store.limit, need)
                log.warning("%s", too_much(job, need, limit))
                self._pool.submit(job)
            case JobFailed(_, reason):
                self._progress.pop(job.client, None)
                self._given_up.add((job.client, job.fingerprint))
                self._report_failure(current, job, reason)

    def _report_failure(self, current: _Current, job: Job, reason: str) -> None:
        log.error("client %d, round %d: %s", job.client, job.round, reason)
        said = failed(self.settings.name, current.store.run.run, job, reason)
        self._transport.publish(self.topics.telemetry(self.settings.name), said.encode())

    def _send_telemetry(self) -> None:
        if not self._transport.drain(0.0):
            return  # a slow link has more important things under way
        pause = TELEMETRY_SECONDS if self._pool.jobs else IDLE_TELEMETRY_SECONDS
        self._telemetry_at = time.monotonic() + pause
        vitals = board.NO_VITALS if self.settings.private else board.vitals()
        said = telemetry(self.settings.name, self._boot, vitals, self._progress)
        self._transport.publish(self.topics.telemetry(self.settings.name), said.encode())


def _question(message: RoundMessage) -> tuple[object, ...]:
    return message.round, message.exchange, message.patches, message.tasks, message.slices, message.since


def _patches(message: RoundMessage, tasks: list[TaskMessage]) -> list[PatchMessage]:
    return [message.patches[i] for i in sorted({i for task in tasks for i in task.patches})]
