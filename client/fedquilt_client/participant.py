"""What an agent and a site's relay have in common: both are agents to the coordinator.

A participant publishes its presence and telemetry, and routes what it receives. All work happens in one thread, which
reads one queue. It never imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from fedquilt_client.presence import WILL_DELAY, OwnPresence
from fedquilt_client.store import AgentStore
from fedquilt_common.errors import FedquiltError, ProtocolError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.wire.client_id import instance_of, keep_suffix
from fedquilt_common.wire.connection_log import ConnectionLog
from fedquilt_common.wire.messages import (
    ENDED_BY_ERROR,
    IDLE_TELEMETRY_SECONDS,
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    MissingMessage,
    NoticeMessage,
    ReceiptMessage,
    RunMessage,
    StopMessage,
    Telemetry,
)
from fedquilt_common.wire.parsing import parse, parse_inbox
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.texts import shorten_text
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
AT_ONCE: Final = float("-inf")
"""A time that is always over."""


class ParticipantSettings(Protocol):
    """The settings that agents and site relays share."""

    @property
    def name(self) -> str:
        """Unique in its federation."""

    @property
    def federation(self) -> str:
        """Name space at the broker."""

    @property
    def state(self) -> Path:
        """Folder of the data that must survive a restart."""

    @property
    def once(self) -> bool:
        """Whether it leaves when the run has ended."""


class Participant(ABC):
    """One participant; ``execute`` runs it.

    Args:
        settings: who it is, and where it keeps its state.
        make_transport: makes the connection to the broker.

    Raises:
        ProtocolError: its name or the federation's cannot be used in a topic.
        FolderInUseError: another process uses the state folder.
        RunFolderError: the state folder cannot be read or written.
        BrokerUnreachableError: the TLS files of the broker's address cannot be used.
    """

    def __init__(self, settings: ParticipantSettings, make_transport: MakeTransport) -> None:
        self._own = settings
        self.topics = Topics(settings.federation)
        self._events: queue.SimpleQueue[Incoming | Callable[[], None]] = queue.SimpleQueue()
        name = check_name(settings.name, "agent")
        with report_disk_errors(settings.state):
            self._store = AgentStore(settings.state)
            self._boot = self._store.next_boot()
        self._instance = instance_of(keep_suffix(settings.state))
        self._farewell = AgentPresence(agent=name, online=False, boot=self._boot).encode()
        will = Will(self.topics.presence(name), self._farewell, WILL_DELAY)
        self._transport = make_transport(self._deliver, will)
        self._presence = OwnPresence(self._transport, self.topics, self._make_presence)
        self._coordinator_epoch = -1
        self._telemetry_due = AT_ONCE
        self._connected = self._ended = False
        self._connection_log = ConnectionLog(log)

    def execute(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Work until ``should_stop`` returns True, or until the run ends if ``once`` is set.

        Raises:
            BrokerUnreachableError: the broker accepts no message of the size of the presence.
            RunFolderError: the state folder cannot be read or written, or what is in it cannot be used.
        """
        self._transport.connect()
        self._start()
        try:
            with report_disk_errors(self._own.state):
                while not should_stop() and not (self._ended and self._own.once):
                    self._step()
        except FedquiltError as error:
            self._report_end(str(error))
            raise
        finally:
            self._end_work()
            farewell = self.topics.presence(self._own.name), self._farewell
            self._transport.close(farewell, end_session=self._ended and self._own.once)
            self._stop()
            self._store.release()

    def _deliver(self, incoming: Incoming) -> None:
        """Queue what the transport delivers, in its thread."""
        self._events.put(incoming)

    def _step(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=STEP_SECONDS))
        self._advance(time.monotonic())
        if self._connected and time.monotonic() >= self._telemetry_due:
            self._send_telemetry()

    def _take(self, event: Incoming | Callable[[], None]) -> None:
        match event:
            case MqttMessage():
                self._take_message(event)
                event.ack()
            case Connected(session_present):
                self._connected = True
                self._connection_log.note_connected()
                log.info("connected to the broker")
                self._presence.connect()
                self._subscribe()  # the broker may have lost presence and subscriptions
                self._reconnect(session_present=session_present)
            case Disconnected():
                self._connected = False
                self._connection_log.note_lost(event)
            case Crashed():
                raise event.error
            case PublicationRefused():
                self._presence.note_refused(event)
            case _:
                event()

    # -- what it publishes ---------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Subscribe to all that it reads before it has a task."""
        self._transport.subscribe(self.topics.agent_filters(self._own.name))

    def _report_end(self, reason: str) -> None:
        """Publish why this process ends: otherwise only the board's own log has the reason."""
        text = shorten_text(f"ends: {reason}")
        notice = NoticeMessage(
            agent=self._own.name, boot=self._boot, kind=ENDED_BY_ERROR, text=text, run=self._run_id()
        )
        with contextlib.suppress(FedquiltError):  # the error that ends the process is the one to report
            self._transport.publish(self.topics.telemetry(self._own.name), notice.encode())

    def _send_telemetry(self) -> None:
        if not self._transport.drain(0.0):
            return  # on a slow link replies go first
        message = self._make_telemetry()
        self._telemetry_due = time.monotonic() + (message.interval or IDLE_TELEMETRY_SECONDS)
        self._presence.restore()
        self._transport.publish(self.topics.telemetry(self._own.name), message.encode())

    # -- what it receives ----------------------------------------------------------------------

    def _take_message(self, message: MqttMessage) -> None:
        try:
            address = self.topics.parse(message.topic)
            if self._take_content(address, message):
                return
            if message.payload:
                self._take_control(address, message)
            elif address.kind == "presence":
                self._presence.note_cleared()
        except ProtocolError as error:
            log.warning("ignored: %s", error)
            self._note_invalid(message)

    def _take_control(self, address: Address, message: MqttMessage) -> None:
        topic, payload = message.topic, message.payload
        match address.kind:
            case "run":
                self._ended = False
                self._telemetry_due = AT_ONCE  # the coordinator subscribes before it publishes its run
                self._enter_run(parse(RunMessage, payload, topic))
            case "round":
                self._open_round(parse(RoundMessage, payload, topic), retained=message.retained)
            case "inbox":
                inbox = parse_inbox(payload, topic)
                if isinstance(inbox, ReceiptMessage) and inbox.outcome == "rejected":
                    self._presence.note_rejected(time.monotonic())
                self._take_inbox(inbox)
            case "coordinator":
                self._take_coordinator(parse(CoordinatorPresence, payload, topic))
            case "end":
                self._take_end(parse(EndMessage, payload, topic))
            case "presence":
                self._presence.take(parse(AgentPresence, payload, topic))

    def _take_coordinator(self, presence: CoordinatorPresence) -> None:
        is_back = presence.online and presence.epoch != self._coordinator_epoch
        self._coordinator_epoch = presence.epoch if presence.online else -1
        if is_back:
            self._telemetry_due = AT_ONCE
            self._greet_coordinator()

    def _take_end(self, end: EndMessage) -> None:
        if self._run_id() == end.run:
            log.info("run %s is over: %s", end.run, end.reason)
            self._leave_run()
            self._ended = True
        self._store.end_run(end.run)

    # -- what agents and relays do differently -------------------------------------------------

    def _start(self) -> None:  # noqa: B027 - nothing to start is usual
        """Start what works beside this thread."""

    def _end_work(self) -> None:  # noqa: B027
        """End what is under way, before the connection closes."""

    def _stop(self) -> None:  # noqa: B027
        """Stop what ``_start`` has started."""

    def _note_invalid(self, message: MqttMessage) -> None:  # noqa: B027
        """Note a message that breaks the protocol."""

    @abstractmethod
    def _make_presence(self) -> AgentPresence:
        """Return its presence."""

    @abstractmethod
    def _make_telemetry(self) -> Telemetry:
        """Return its state now, with the seconds until the next telemetry."""

    @abstractmethod
    def _advance(self, now: float) -> None:
        """Do what is due at the monotonic time ``now``; called after each message, and at least every STEP_SECONDS."""

    @abstractmethod
    def _reconnect(self, *, session_present: bool) -> None:
        """Ask again for what may have been lost before a connection."""

    @abstractmethod
    def _take_content(self, address: Address, message: MqttMessage) -> bool:
        """Handle a message unless it is a control message of the coordinator; returns whether it was handled.

        Raises:
            ProtocolError: the message breaks the protocol.
        """

    @abstractmethod
    def _run_id(self) -> str | None:
        """Return the identifier of the current run."""

    @abstractmethod
    def _enter_run(self, message: RunMessage) -> None:
        """Take part in a run from now on, and leave any other."""

    @abstractmethod
    def _leave_run(self) -> None:
        """Leave the current run."""

    @abstractmethod
    def _open_round(self, message: RoundMessage, *, retained: bool) -> None:
        """Work on an exchange from now on; its manifest may arrive before its run's message."""

    @abstractmethod
    def _take_inbox(self, message: ReceiptMessage | MissingMessage | StopMessage) -> None:
        """Handle a message to this participant alone."""

    @abstractmethod
    def _greet_coordinator(self) -> None:
        """Ask a coordinator that has restarted for what is missing."""
