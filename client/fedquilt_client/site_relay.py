"""The relay of a site: the process that adds up the replies of the boards behind the site's broker.

To the coordinator it is an agent without clients. To the boards it is what the coordinator is elsewhere: it takes their
replies and writes the receipts. All work happens in one thread, which reads one queue. It imports no torch.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_client import hardware
from fedquilt_client.energy import EnergyReading
from fedquilt_client.presence import WILL_DELAY, OwnPresence
from fedquilt_client.reports import telemetry_message
from fedquilt_client.site_boards import SiteBoards
from fedquilt_client.site_run import SiteRun
from fedquilt_client.store import AgentStore
from fedquilt_common import __version__
from fedquilt_common.errors import ProtocolError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.client_id import instance_of, keep_suffix
from fedquilt_common.wire.messages import (
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    FailedMessage,
    RunMessage,
    StopMessage,
)
from fedquilt_common.wire.parsing import parse, parse_inbox, parse_telemetry
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import RELAYED, Address, Topics, check_name
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

KIND: Final = "relay"
"""What the relay reports as its kind of board."""
STEP_SECONDS: Final = 0.5
TELEMETRY_SECONDS: Final = 5.0
MOST_EARLY: Final = 10_000
"""Replies that are asked for again because they arrived before the run."""


@dataclass(frozen=True)
class RelaySettings:
    """Settings of a site's relay.

    Attributes:
        name: of its agent, unique in the federation.
        site: whose boards it serves.
        state: folder of the data that must survive a restart.
        owners: the board of each client; None: the first board that claims a client hosts it.
        once: leave when the run has ended.
    """

    name: str
    site: str
    state: Path
    federation: str = "default"
    owners: Mapping[int, str] | None = None
    once: bool = False


class SiteRelay:
    """One relay; ``execute`` runs it.

    Args:
        settings: whom it serves, and where it keeps its state.
        make_transport: makes the connection to the site's broker.

    Raises:
        ProtocolError: a name cannot be used in a topic.
        FolderInUseError: another process uses the state folder.
        RunFolderError: the state folder cannot be read or written.
        BrokerUnreachableError: the TLS files of the broker's address cannot be used.
    """

    def __init__(self, settings: RelaySettings, make_transport: MakeTransport) -> None:
        self.settings = settings
        self.topics = Topics(settings.federation)
        self._events: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        name = check_name(settings.name, "agent")
        with report_disk_errors(settings.state):
            self._store = AgentStore(settings.state)
            self._boot = self._store.next_boot()
        self._instance = instance_of(keep_suffix(settings.state))
        self._farewell = AgentPresence(agent=name, online=False, boot=self._boot).encode()
        will = Will(self.topics.presence(name), self._farewell, WILL_DELAY)
        self._transport = make_transport(self._events.put, will)
        self._presence = OwnPresence(self._transport, self.topics, self._make_presence)
        self._boards = SiteBoards(settings.site, settings.owners)
        self._run: SiteRun | None = None
        self._early_round: RoundMessage | None = None
        self._early_replies: dict[str, Address] = {}
        self._epoch = -1
        self._telemetry_due = self._repair_at = float("-inf")
        self._connected = self._ended = False

    def execute(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Work until ``should_stop`` returns True, or until the run ends if the settings say ``once``.

        Raises:
            BrokerUnreachableError: the broker accepts no message of the size of this relay's presence.
            RunFolderError: a patch does not fit on the disk, or the state folder cannot be read or written.
        """
        self._transport.connect()
        try:
            with report_disk_errors(self.settings.state):
                while not should_stop() and not (self._ended and self.settings.once):
                    self._step()
        finally:
            farewell = self.topics.presence(self.settings.name), self._farewell
            self._transport.close(farewell, end_session=self._ended and self.settings.once)
            self._store.release()

    def _step(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=STEP_SECONDS))
        now = time.monotonic()
        if not self._connected:
            return
        if now >= self._repair_at + STEP_SECONDS and self._run is not None:
            self._repair_at = now
            self._run.repair()
        if now >= self._telemetry_due:
            self._send_telemetry(now)

    def _take(self, event: Incoming) -> None:
        match event:
            case MqttMessage():
                self._take_message(event)
                event.ack()
            case Connected(session_present):
                self._connected = True
                log.info("connected to the broker of the site %s", self.settings.site)
                self._announce()
                if self._run is not None:
                    self._run.reconnect(session_present=session_present)
            case Disconnected():
                self._connected = False
                log.warning("%s. %s; trying again", event.reason, event.advice)
            case Crashed():
                raise event.error
            case PublicationRefused():
                pass  # the ACL may name this relay later

    # -- what the relay publishes --------------------------------------------------------------

    def _announce(self) -> None:
        """Publish the presence and subscribe: first to what names the boards, last to their replies."""
        self._presence.connect()
        *about, replies = self.topics.filters(*RELAYED)
        self._transport.subscribe([*about, *self.topics.agent_filters(self.settings.name), replies])

    def _make_presence(self) -> AgentPresence:
        return AgentPresence(
            agent=self.settings.name,
            online=True,
            boot=self._boot,
            profile=hardware.board_profile(KIND, None),
            version=__version__,
            instance=self._instance,
            site=self.settings.site,
            site_relay=True,
        )

    def _send_telemetry(self, now: float) -> None:
        if not self._transport.drain(0.0):
            return  # on a slow link replies go first
        self._telemetry_due = now + TELEMETRY_SECONDS
        self._presence.restore()
        vitals = hardware.read_vitals()
        message = telemetry_message(self.settings.name, self._boot, vitals, EnergyReading(), {}, TELEMETRY_SECONDS)
        self._transport.publish(self.topics.telemetry(self.settings.name), message.encode())

    # -- what the relay receives ---------------------------------------------------------------

    def _take_message(self, message: MqttMessage) -> None:
        try:
            address = self.topics.parse(message.topic)
            if address.agent not in ("", self.settings.name):
                self._take_from_board(address, message)
            elif address.kind == "slices" and self._run is not None:
                self._run.take_patch(address, message)
            elif address.kind == "presence" and not message.payload:
                self._presence.note_cleared()
            elif message.payload:
                self._take_control(address, message)
        except ProtocolError as error:
            log.warning("ignored: %s", error)

    def _take_from_board(self, address: Address, message: MqttMessage) -> None:
        if address.kind == "replies" and self._run is not None:
            self._run.take_reply(address, message)
        elif address.kind == "replies":
            self._note_early(address, message)
        elif address.kind == "presence" and message.payload:
            presence = parse(AgentPresence, message.payload, message.topic)
            if presence.agent == address.agent:
                new = self._boards.take(presence)
                if self._run is not None:
                    self._run.meet(new)
        elif address.kind == "telemetry" and self._run is not None:
            report = parse_telemetry(message.payload, message.topic)
            if isinstance(report, FailedMessage) and report.agent == address.agent:
                self._run.take_failure(report)

    def _note_early(self, address: Address, message: MqttMessage) -> None:
        """Note a reply that the broker has kept for this relay, and that arrives before the run does."""
        header = ChunkHeader.decode(message.header)
        if header.index == header.count - 1 and len(self._early_replies) < MOST_EARLY:
            self._early_replies[header.digest] = address

    def _take_control(self, address: Address, message: MqttMessage) -> None:
        topic, payload = message.topic, message.payload
        match address.kind:
            case "run":
                self._enter_run(parse(RunMessage, payload, topic))
            case "round":
                self._open_round(parse(RoundMessage, payload, topic), retained=message.retained)
            case "inbox":
                received = parse_inbox(payload, topic)
                if self._run is not None and not isinstance(received, StopMessage):
                    self._run.take_inbox(received)
            case "coordinator":
                self._take_coordinator(parse(CoordinatorPresence, payload, topic))
            case "end":
                self._take_end(parse(EndMessage, payload, topic))
            case "presence":
                self._presence.take(parse(AgentPresence, payload, topic))

    def _enter_run(self, message: RunMessage) -> None:
        self._ended = False
        if self._run is not None and self._run.store.run == message:
            return
        self._leave_run()
        store = self._store.open_run(message)
        self._run = SiteRun(self.settings.name, store, self._boards, self._transport, self.topics)
        log.info("run %s", message.run)
        if self._early_round is not None:
            self._open_round(self._early_round, retained=True)

    def _open_round(self, message: RoundMessage, *, retained: bool) -> None:
        if self._run is None or self._run.store.run.run != message.run:
            self._early_round = message
        else:
            self._run.open_round(message, retained=retained)
            early, self._early_replies = self._early_replies, {}
            self._run.invite(early)

    def _leave_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _take_coordinator(self, presence: CoordinatorPresence) -> None:
        is_back = presence.online and presence.epoch != self._epoch
        self._epoch = presence.epoch if presence.online else -1
        if is_back:
            self._telemetry_due = float("-inf")
            if self._run is not None:
                self._run.greet_coordinator()

    def _take_end(self, end: EndMessage) -> None:
        if self._run is not None and self._run.store.run.run == end.run:
            log.info("run %s is over: %s", end.run, end.reason)
            self._leave_run()
            self._ended = True
        self._store.end_run(end.run)
