"""The agent: the process on a board that hosts clients.

It publishes its presence and telemetry, and routes messages to the board's jobs. It never imports torch. All work
happens in one thread, which reads one queue.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable
from typing import Final

from fedquilt_client import hardware
from fedquilt_client.energy import EnergyMeter, EnergyReading
from fedquilt_client.jobs import Jobs
from fedquilt_client.power import PowerSensor
from fedquilt_client.power_choice import choose_sensor
from fedquilt_client.power_programs import CommandMeter, Stopped
from fedquilt_client.power_topic import TopicMeter
from fedquilt_client.presence import WILL_DELAY, OwnPresence
from fedquilt_client.reports import NoticeLimit, failure_message, notice_message, telemetry_message
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import AgentStore
from fedquilt_common import __version__
from fedquilt_common.errors import ProtocolError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.training_jobs import Job
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.client_id import instance_of, keep_suffix
from fedquilt_common.wire.messages import (
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    RunMessage,
)
from fedquilt_common.wire.parsing import parse, parse_inbox
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Address, Topics, check_name
from fedquilt_common.wire.transport import (
    Connected,
    Crashed,
    Disconnected,
    Incoming,
    MakeTransport,
    MqttMessage,
    PublicationRefused,
    Will,
)

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.5
TELEMETRY_SECONDS: Final = 2.0
"""Pause between two telemetry messages during training."""
IDLE_TELEMETRY_SECONDS: Final = 5.0
FAILURE_SECONDS: Final = 30.0
"""Pause between two reports of the same failure."""
_AT_ONCE: Final = float("-inf")
"""A time that is always over."""


class Agent:
    """One agent; ``execute`` runs it.

    Args:
        settings: what the agent hosts, and where it keeps its state.
        make_transport: makes the connection to the broker.

    Raises:
        ProtocolError: the agent's name or the federation's cannot be used in a topic.
        FolderInUseError: another process uses the state folder.
        RunFolderError: the state folder cannot be read or written.
        BrokerUnreachableError: the TLS files of the broker's address cannot be used.
    """

    def __init__(self, settings: AgentSettings, make_transport: MakeTransport) -> None:
        self.settings = settings
        self.topics = Topics(settings.federation)
        self._events: queue.SimpleQueue[Incoming | Callable[[], None]] = queue.SimpleQueue()
        name = check_name(settings.name, "agent")
        with report_disk_errors(settings.state):
            self._store = AgentStore(settings.state)
            self._boot = self._store.next_boot()
        self._instance = instance_of(keep_suffix(settings.state))
        self._farewell = AgentPresence(agent=name, online=False, boot=self._boot).encode()
        will = Will(self.topics.presence(name), self._farewell, WILL_DELAY)
        self._transport = make_transport(self._events.put, will)
        self._meter = None if settings.private else EnergyMeter(self._find_sensor)
        topic = None if settings.private else settings.power_topic
        self._topic_meter = None if topic is None else TopicMeter(topic)
        self._jobs = Jobs(
            settings, self._store, self._transport, self.topics, self._events.put,
            self._report_failure, self._report_notice, self._meter,
        )  # fmt: skip
        self._notices = NoticeLimit()
        self._coordinator_epoch = -1
        self._telemetry_due = self._repair_at = self._failures_due = _AT_ONCE
        self._jobs_seen = 0
        self._connected = False
        self._presence = OwnPresence(self._transport, self.topics, self._make_presence)
        self._ended = False

    def execute(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Work until ``should_stop`` returns True, or until the run ends if the settings say ``once``.

        Raises:
            BrokerUnreachableError: the broker accepts no message of the size of this agent's presence.
            RunFolderError: the private memory of every client is damaged, a patch does not fit on the disk, or the
                state folder cannot be read or written.
        """
        self._transport.connect()
        if self._topic_meter is not None:
            self._topic_meter.start()
        if self._meter is not None:
            self._meter.start()
        try:
            with report_disk_errors(self.settings.state):
                self._work(should_stop)
        finally:
            self._jobs.close()
            farewell = self.topics.presence(self.settings.name), self._farewell
            self._transport.close(farewell, end_session=self._ended and self.settings.once)
            if self._meter is not None:
                self._meter.stop()
            if self._topic_meter is not None:
                self._topic_meter.close()
            self._store.release()

    def _find_sensor(self, stopped: Stopped) -> PowerSensor:
        settings = self.settings
        command = settings.power_command
        meter = self._topic_meter if command is None else CommandMeter(command, stopped)
        return choose_sensor(settings.kind, meter, stopped, agents=settings.machine_agents)

    def _work(self, should_stop: Callable[[], bool]) -> None:
        while not should_stop() and not (self._ended and self.settings.once):
            self._step()

    def _step(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=STEP_SECONDS))
        now = time.monotonic()
        if now >= self._repair_at + STEP_SECONDS:
            self._repair_at = now
            self._jobs.repair(connected=self._connected)
        if self._jobs_seen != self._jobs.started:  # report soon that training has started
            self._jobs_seen = self._jobs.started
            self._telemetry_due = min(self._telemetry_due, now + TELEMETRY_SECONDS)
        if self._connected and now >= self._telemetry_due:
            self._send_telemetry()
        if self._connected and self._coordinator_epoch >= 0 and now >= self._failures_due:
            self._failures_due = now + FAILURE_SECONDS
            self._jobs.report_failures()

    def _take(self, event: Incoming | Callable[[], None]) -> None:
        match event:
            case MqttMessage():
                self._take_message(event)
                event.ack()
            case Connected(session_present):
                self._connected = True
                log.info("connected to the broker")
                self._announce()
                self._jobs.reconnect(session_present)
            case Disconnected():
                self._connected = False
                log.warning("%s. %s; trying again", event.reason, event.advice)
            case Crashed():
                raise event.error
            case PublicationRefused():
                pass  # the ACL may name this agent later
            case _:
                event()

    # -- what the agent publishes --------------------------------------------------------------

    def _announce(self) -> None:
        """Publish the presence and subscribe: the broker may have lost both."""
        self._presence.connect()
        self._transport.subscribe(self.topics.agent_filters(self.settings.name))

    def _make_presence(self) -> AgentPresence:
        settings = self.settings
        return AgentPresence(
            agent=settings.name,
            online=True,
            boot=self._boot,
            clients=list(settings.clients),
            workers=settings.workers,
            profile=hardware.board_profile(settings.kind, settings.memory, private=settings.private),
            version=__version__,
            instance=self._instance,
            site=settings.site,
        )

    def _send_telemetry(self) -> None:
        if not self._transport.drain(0.0):
            return  # on a slow link replies go first
        interval = TELEMETRY_SECONDS if self._jobs.busy else IDLE_TELEMETRY_SECONDS
        self._telemetry_due = time.monotonic() + interval
        self._presence.restore()
        vitals = hardware.NO_VITALS if self.settings.private else hardware.read_vitals(self._jobs.processes)
        energy = EnergyReading() if self._meter is None else self._meter.reading
        message = telemetry_message(self.settings.name, self._boot, vitals, energy, self._jobs.progress, interval)
        self._transport.publish(self.topics.telemetry(self.settings.name), message.encode())

    def _report_failure(self, run: str, client: int, exchange: ExchangeId, reason: str, declined: bool) -> None:
        message = failure_message(self.settings.name, run, client, exchange, reason, declined=declined)
        self._transport.publish(self.topics.telemetry(self.settings.name), message.encode())

    def _report_notice(self, kind: str, text: str, job: Job, run: str) -> None:
        if self._notices.allows(time.monotonic()):
            message = notice_message(self.settings.name, self._boot, kind, text, job, run)
            self._transport.publish(self.topics.telemetry(self.settings.name), message.encode())

    # -- what the agent receives ---------------------------------------------------------------

    def _take_message(self, message: MqttMessage) -> None:
        try:
            address = self.topics.parse(message.topic)
            if address.kind in ("slices", "soft-labels"):
                self._jobs.take_chunk(address, message)
            elif address.kind == "data":
                self._jobs.take_samples(message)
            elif message.payload:
                self._take_control(address, message)
            elif address.kind == "presence":
                self._presence.note_cleared()
        except ProtocolError as error:
            log.warning("ignored: %s", error)

    def _take_control(self, address: Address, message: MqttMessage) -> None:
        topic, payload = message.topic, message.payload
        match address.kind:
            case "run":
                self._ended = False
                self._jobs.enter_run(parse(RunMessage, payload, topic))
            case "round":
                self._jobs.open_round(parse(RoundMessage, payload, topic), retained=message.retained)
            case "inbox":
                self._jobs.take_inbox(parse_inbox(payload, topic))
            case "coordinator":
                self._take_coordinator(parse(CoordinatorPresence, payload, topic))
            case "end":
                self._take_end(parse(EndMessage, payload, topic))
            case "presence":
                self._presence.take(parse(AgentPresence, payload, topic))

    def _take_coordinator(self, presence: CoordinatorPresence) -> None:
        is_back = presence.online and presence.epoch != self._coordinator_epoch
        self._coordinator_epoch = presence.epoch if presence.online else -1
        if is_back:  # its manifest, which retries what has failed, follows
            self._failures_due = time.monotonic() + FAILURE_SECONDS
            self._telemetry_due = _AT_ONCE
            self._jobs.greet_coordinator()

    def _take_end(self, end: EndMessage) -> None:
        if self._jobs.run == end.run:
            log.info("run %s is over: %s", end.run, end.reason)
            self._jobs.leave_run()
            self._ended = True
        self._store.end_run(end.run)
