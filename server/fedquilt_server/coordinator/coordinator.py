"""The coordinator of a run: its connection to the broker, and the loop that handles every message.

All decisions are made in one thread; others sync and hash large files. The coordinator acknowledges the last chunk of a
reply only when the reply is on disk and in the journal.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
from collections.abc import Callable, Sequence
from typing import Final

from fedquilt_common.errors import (
    FederationInUseError,
    FedquiltError,
    ProtocolError,
    RunFolderError,
)
from fedquilt_common.flood_control.admission import UNKNOWN, Admission
from fedquilt_common.flood_control.flood_guard import FloodGuard
from fedquilt_common.types import Assignments, ClientId
from fedquilt_common.wire.data_messages import DataRequest
from fedquilt_common.wire.messages import CoordinatorPresence, EndMessage
from fedquilt_common.wire.parsing import parse
from fedquilt_common.wire.topics import Address, Topics
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
from fedquilt_server.coordinator.agent_messages import AgentMessages
from fedquilt_server.coordinator.broker_wait import BROKER_SECONDS, await_broker
from fedquilt_server.coordinator.claims import Claims, all_free
from fedquilt_server.coordinator.controls import Controls
from fedquilt_server.coordinator.data_service import DataService
from fedquilt_server.coordinator.display import StatusUpdater
from fedquilt_server.coordinator.downlink import Downlink
from fedquilt_server.coordinator.driver import DRAIN_SECONDS, Driver
from fedquilt_server.coordinator.inbox import Inbox
from fedquilt_server.coordinator.ledger import Ledger
from fedquilt_server.coordinator.leftovers import Leftovers
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.receipts import ReceiptPublisher
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.coordinator.rivals import Rivals
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.coordinator.uplink import Uplink
from fedquilt_server.round.events import CutOff, Event, Joined, Left, Rejected, Replied, Ticked
from fedquilt_server.runs import clock
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.control import ControlRequest
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.status.stall import StallDetector, stall_advice

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.5
HEALTH_SECONDS: Final = 0.5
"""Time between two judgements of the boards' health."""
REPLIES_TOGETHER: Final = 64
"""Most replies that become durable together; the transport holds no more messages than that."""
STALL_SECONDS: Final = 60.0
"""A run whose failing clients prevent the quorum ends after this time; a restarted agent retries within it."""


class Coordinator:
    """Runs one experiment to its end.

    Args:
        run: the opened run with its machine.
        federation: the name space at the broker.
        make_transport: makes the transport from a callback and a last will.
        store: where the page reads the status.
        read_assignments: returns what the inventory decides: which board may host a client, and which are revoked.
        patience: seconds without progress after which failing clients end the run.
        requests: what people ask of the run.
        broker_wait: seconds for which the broker may be unreachable at the start.
    """

    def __init__(
        self,
        run: ActiveRun,
        federation: str,
        make_transport: MakeTransport,
        store: StatusStore,
        read_assignments: Callable[[], Assignments] = all_free,
        patience: float | None = None,
        requests: queue.SimpleQueue[ControlRequest] | None = None,
        broker_wait: float = BROKER_SECONDS,
    ) -> None:
        self.run = run
        self._broker_wait = broker_wait
        self._read_assignments = read_assignments
        self.machine = run.machine
        self._store = store
        self._topics = Topics(federation)
        self._inbox = Inbox(log)
        self._requests = requests or queue.SimpleQueue()
        folder = run.folder
        self._farewell = CoordinatorPresence(online=False, epoch=folder.epoch, run=folder.run).encode()
        self._transport = make_transport(self._deliver, Will(self._topics.coordinator, self._farewell))
        self._agents = AgentList()
        self._display = StatusUpdater(store, self._agents)
        self._stall = StallDetector(run.experiment.participation, patience or STALL_SECONDS, stall_advice(folder.path))
        self._handled: list[Callable[[], None]] = []
        self._working = False
        self._health_at = 0.0
        guard = FloodGuard(run.experiment.data.clients, run.experiment.chunk)
        self._leftovers = Leftovers(self._transport, self._topics, read_assignments().revoked)
        self._admission = Admission(self._transport, self._topics, guard, is_revoked=self._leftovers.is_revoked)
        self._relays = SiteRelays(self.machine, read_assignments)
        self._ledger = Ledger(self.machine, self._admission, run.experiment.chunk, self._relays)
        self._rivals = Rivals(self._transport, self._topics, folder.run, folder.epoch, self._announce)
        self._wire()

    def _wire(self) -> None:
        """Make the parts and connect them; every event reaches the driver through ``record``."""
        run, transport, limit, record = self.run, self._transport, RateLimit(), self._record
        wire, folder = run.experiment.wire, run.folder
        receipts = ReceiptPublisher(transport, self._topics, folder.run)
        self._downlink = Downlink(
            transport, self._topics, folder.blobs, folder.journal, wire.down, run.experiment.chunk
        )
        self._downlink.remember(self.machine.state.arrays, run.published_model)
        self._refusals = Refusals(limit, record)
        self._uplink = Uplink(run, receipts, self._refusals, self._record_replies, self._relays, self._admission.charge)
        self._claims = Claims(self.machine, limit, self._refusals, record, self._clear_presence, self._read_assignments)
        self._agent_messages = AgentMessages(
            folder.run, run.history, self.machine, self._agents, self._store, self._claims, self._refusals, limit,
            self._relays,
        )  # fmt: skip
        self._samples = DataService(
            folder.run, run.delivery, transport, self._topics, run.experiment.chunk, self.machine
        )
        self._controls = Controls(run, self._claims, record, self._downlink.publish_again, self._store)
        self._driver = Driver(
            run, transport, self._downlink, self._uplink, receipts, self._display, limit, self._ledger
        )

    def _record(self, event: Event) -> None:
        self._uplink.flush()  # what arrived before comes first
        self._ledger.book(event)
        self._driver.record(event)
        if isinstance(event, Joined):
            self._admission.add(event.agent)
        if isinstance(event, Joined | Left):
            self._ledger.make_room(event.agent)

    def _record_replies(self, replies: Sequence[Replied]) -> None:
        for reply in replies:
            self._ledger.book(reply)
        self._driver.record(*replies)

    @property
    def was_stopped(self) -> bool:
        """Whether a person has stopped the run after a round."""
        return self._controls.wants_end

    # -- the life of a run ---------------------------------------------------------------------

    def execute(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Connect, and work until the run is finished or ``should_stop`` returns True.

        Raises:
            BrokerUnreachableError: no broker accepts the coordinator, or its presence, at the start.
            RunFailedError: the algorithm cannot close a round, or failing clients prevent the quorum.
            FederationInUseError: another coordinator works in the federation.
            RunFolderError: the run folder is damaged, or cannot be read or written.
        """
        run = self.run
        run.watch_socket(lambda: (self._transport.bytes_sent, self._transport.bytes_received))
        self._display.start(run)
        self._display.expect_boards(self._read_assignments().boards)
        self._transport.connect()
        is_rejected = False
        try:
            connected = await_broker(self._inbox.messages, self._take, self._broker_wait, should_stop)
            if connected is not None and (connected.session_present or self._await_turn(should_stop)):
                self._work(should_stop)
        except FedquiltError as error:
            is_rejected = isinstance(error, FederationInUseError)
            self._store.update(phase="failed", message=str(error))
            raise
        finally:
            try:
                self._driver.leave()
            finally:
                farewell = (self._topics.coordinator, self._farewell) if self._working else None
                self._transport.close(farewell, end_session=run.folder.closed or is_rejected)

    def _work(self, should_stop: Callable[[], bool]) -> None:
        run, folder = self.run, self.run.folder
        folder.begin()
        self._working = True
        self._announce()
        if folder.epoch == 1:
            run.history.add("started", clock.now(), f"Run {folder.run} began")
        self._driver.stop_if_diverged()
        self._driver.recover()
        run.result_files.write(self._display.boards)  # a run that goes on is no longer one that failed
        self._admission.start(self.machine.agents)
        self._claims.restore()
        self._controls.restore()
        try:
            while not (self.machine.finished or self._controls.wants_end or should_stop()):
                self._step()
        finally:
            with contextlib.suppress(RunFolderError):  # the journal's last event is the next best figure
                run.note_alive(clock.now(), force=True)
        while self.machine.finished and not run.folder.closed and not should_stop():
            self._publish_end()

    def _await_turn(self, should_stop: Callable[[], bool]) -> bool:
        """Wait until no coordinator that works here can object: nothing of this run is published before.

        Returns False if ``should_stop`` ended the wait.

        A coordinator that finds its own session does not wait: the answer would arrive after the messages in the
        session, which the coordinator handles after its journal.

        Raises:
            FederationInUseError: one objects.
        """
        while not self._rivals.settled:
            self._take_next(STEP_SECONDS)
            self._rivals.advance()
            if not self._rivals.settled and should_stop():
                return False
        return True

    def _step(self) -> None:
        """Handle the messages that are there, or wait for the next deadline."""
        with contextlib.suppress(queue.Empty):
            self._controls.take(self._requests.get_nowait())
        self._take_next(min(STEP_SECONDS, max(0.0, self._wake_at - clock.now())))
        if self._inbox.connected:
            self._claims.check()
            self._leftovers.follow(self._claims.revoked)
        self._rivals.advance()
        now = clock.now()
        for mute in self._admission.advance():
            reason = self._admission.describe(mute)
            self._driver.record(Rejected(now, mute.agent or UNKNOWN, None, self.machine.round, reason))
        if now >= self._wake_at:
            self._driver.record(Ticked(now))
        self._driver.take_scores(wait=False)
        self._stall.check(self._store.current, self._claims.listened)
        self._check_health(now)

    @property
    def _wake_at(self) -> float:
        """Unix time of the next deadline; infinite without one, and without a broker: no client can reply then."""
        wake = self.machine.wake_at if self._inbox.connected else None
        return math.inf if wake is None else wake

    def _note_gap(self) -> None:
        """Journal for how long no message could arrive, if a deadline runs."""
        if (seconds := self._inbox.take_gap()) and self._working:
            self._uplink.flush()  # what arrived before comes first, and may close the exchange
            if self.machine.wake_at is not None:
                self._driver.record(CutOff(clock.now(), seconds))

    def _check_health(self, now: float) -> None:
        if now >= self._health_at:
            self._health_at = now + HEALTH_SECONDS
            self.run.note_alive(now)
            self.run.history.flush()
            self.run.result_files.write_due(self._display.boards)  # the next round may take hours
            if self._inbox.connected:
                self._display.check_health(self._claims.silences(), self._uplink.senders, now)
                self._agent_messages.check_relays(now)

    def _publish_end(self) -> None:
        """Clear what the broker retains of the run and publish its end; retry while the broker is unreachable."""
        self._store.update(phase="finished", message=self.run.end_reason, broker_connected=self._inbox.connected)
        self._downlink.clear()
        self._transport.publish(self._topics.run, b"", retain=True)
        end = EndMessage(run=self.run.folder.run, reason=self.run.end_reason)
        self._transport.publish(self._topics.end, end.encode(), retain=True)
        if self._inbox.connected and self._transport.drain(DRAIN_SECONDS):
            self.run.folder.close()
        else:
            self._take_next(1.0)

    # -- messages ------------------------------------------------------------------------------

    def _deliver(self, incoming: Incoming) -> None:
        """Queue what the transport delivers, in its thread; drop what is not admitted."""
        if self._leftovers.has(incoming) or not self._admission.turns_away(incoming):
            self._inbox.messages.put(incoming)

    def _take_next(self, wait: float) -> None:
        """Handle the next message; while replies wait to become durable together, handle all that are there."""
        incoming = self._inbox.wait(wait)
        self._note_gap()
        with contextlib.suppress(queue.Empty):
            if incoming is not None:
                self._take(incoming)
            while 0 < self._uplink.waiting < REPLIES_TOGETHER:
                self._take(self._inbox.messages.get(timeout=self._uplink.pause))
        self._uplink.flush()
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge what has been handled; replies only when they are durable."""
        if not self._uplink.waiting:
            acknowledge, self._handled = self._handled, []
            for ack in acknowledge:
                ack()

    def _take(self, incoming: Incoming) -> None:
        match incoming:
            case MqttMessage():
                if self._leftovers.has(incoming):
                    self._leftovers.clear(incoming)
                elif not self._admission.ignores(incoming):  # its agent may be muted since it arrived
                    self._take_message(incoming)
                incoming.free()
                self._handled.append(incoming.ack)
                self._acknowledge()
            case Connected():
                self._inbox.connect()
                self._claims.start_listening()
                self._rivals.connect()
                self._announce()
                self._note_gap()
                self._store.update(broker_connected=True, message="")
            case PublicationRefused():
                self._rivals.check_refusal(incoming)
            case Crashed():
                raise incoming.error
            case Disconnected():
                self._inbox.lose(incoming)
                self._store.update(broker_connected=False, message=f"{incoming.reason}. {incoming.advice}")

    def _announce(self) -> None:
        """Publish everything that the broker must retain: it may have lost it."""
        if self._working:
            self._admission.connect(self._topics.filters("sites"))
            self._transport.publish(self._topics.end, b"", retain=True)
            self._transport.publish(self._topics.run, self.run.message.encode(), retain=True)
            self._downlink.publish_again()

    def _clear_presence(self, agent: str) -> None:
        self._transport.publish(self._topics.presence(agent), b"", retain=True)

    def _take_message(self, message: MqttMessage) -> None:
        """Handle a message; one that is not valid is refused, and ends nothing."""
        agent = self._admission.sender(message.topic)
        client: ClientId | None = None
        try:
            address = self._topics.parse(message.topic)
            agent, client = address.agent or agent, address.client if address.client >= 0 else None
            self._dispatch(address, message)
        except ProtocolError as error:
            self._refuse(message, agent, client, str(error))

    def _dispatch(self, address: Address, message: MqttMessage) -> None:
        """Give a message to the part that handles its kind.

        Raises:
            ProtocolError: it is not valid.
        """
        if address.kind == "replies":
            # first: an agent that was gone must host its client when the chunk is judged
            self._claims.note_message(address.agent)
            self._ledger.take(address, len(message.payload))
            self._uplink.take(address, message)
        elif address.kind == "requests":
            if self._samples.take(address.agent, parse(DataRequest, message.payload, message.topic)):
                self.run.traffic.save()  # the next round may come much later
        elif address.kind == "coordinator" and message.payload:
            self._rivals.take(message)
        elif message.payload:
            self._take_agent_message(address, message)

    def _take_agent_message(self, address: Address, message: MqttMessage) -> None:
        self._agent_messages.take(address, message)
        if address.kind == "presence" and not message.retained:
            self._display.show_connected(address.agent, self.machine)
        if address.agent not in self._claims:
            self._admission.remove(address.agent)

    def _refuse(self, message: MqttMessage, agent: str, client: ClientId | None, reason: str) -> None:
        """Report a message that breaks the protocol."""
        if message.retained and self._leftovers.is_revoked(agent):
            self._leftovers.clear(message)  # a presence that the claims never see
        if self._working:
            self._refusals.add(agent, client, self.machine.round, reason)
        else:  # the journal is not handled yet
            log.warning("ignored: %s", reason)
