"""The relay of a site: the process that adds up the replies of the boards behind the site's broker.

To the coordinator it is an agent without clients. To the boards it is what the coordinator is elsewhere: it takes their
replies and writes the receipts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_client import hardware
from fedquilt_client.energy import EnergyReading
from fedquilt_client.participant import AT_ONCE, STEP_SECONDS, Participant
from fedquilt_client.reports import NoticeLimit, telemetry_message
from fedquilt_client.site_boards import SiteBoards
from fedquilt_client.site_run import SiteRun
from fedquilt_common import __version__
from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.flood_control.flood_guard import RECORD_UNITS, FloodGuard
from fedquilt_common.wire.chunks import LARGEST_CHUNK, ChunkHeader
from fedquilt_common.wire.message_base import MAX_CLIENTS
from fedquilt_common.wire.messages import (
    IDLE_TELEMETRY_SECONDS,
    MUTED,
    AgentPresence,
    FailedMessage,
    MissingMessage,
    NoticeMessage,
    ReceiptMessage,
    RunMessage,
    StopMessage,
    Telemetry,
)
from fedquilt_common.wire.parsing import parse, parse_telemetry
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.texts import shorten_text
from fedquilt_common.wire.topics import RELAYED, Address
from fedquilt_common.wire.transport import Incoming, MakeTransport, MqttMessage

log = logging.getLogger(__name__)

KIND: Final = "relay"
"""What the relay reports as its kind of board."""
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


class SiteRelay(Participant):
    """One relay.

    Args:
        settings: whom it serves, and where it keeps its state.
        make_transport: makes the connection to the site's broker.
    """

    def __init__(self, settings: RelaySettings, make_transport: MakeTransport) -> None:
        super().__init__(settings, make_transport)
        self.settings = settings
        self._boards = SiteBoards(settings.site, settings.owners)
        self._run: SiteRun | None = None
        self._early_round: RoundMessage | None = None
        self._early_replies: dict[str, Address] = {}
        self._repair_at = AT_ONCE
        guard = FloodGuard(MAX_CLIENTS, LARGEST_CHUNK)  # until there is a run, it may be any
        self._admission = Admission(self._transport, self.topics, guard, RELAYED, settings.name)
        self._admission.start(set((settings.owners or {}).values()))
        self._notices = NoticeLimit()

    def _deliver(self, incoming: Incoming) -> None:
        if not self._admission.turns_away(incoming):
            super()._deliver(incoming)

    def _advance(self, now: float) -> None:
        for mute in self._admission.advance():
            self._report(MUTED, self._admission.describe(mute))
        if self._connected and self._run is not None and now >= self._repair_at + STEP_SECONDS:
            self._repair_at = now
            self._run.repair()

    # -- what the relay publishes --------------------------------------------------------------

    def _subscribe(self) -> None:
        """Subscribe to what names the boards first, and to their replies last: replies need their boards."""
        self._admission.connect(self.topics.agent_filters(self.settings.name))

    def _report(self, kind: str, text: str) -> None:
        """Publish what people should see."""
        if self._notices.allows(time.monotonic()):
            name = self.settings.name
            notice = NoticeMessage(agent=name, boot=self._boot, kind=kind, text=shorten_text(text), run=self._run_id())
            self._transport.publish(self.topics.telemetry(name), notice.encode())

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

    def _make_telemetry(self) -> Telemetry:
        vitals = hardware.read_vitals()
        return telemetry_message(self.settings.name, self._boot, vitals, EnergyReading(), {}, IDLE_TELEMETRY_SECONDS)

    # -- what the relay receives ---------------------------------------------------------------

    def _take_content(self, address: Address, message: MqttMessage) -> bool:
        if self._admission.ignores(message):  # its board may be muted since it arrived
            return True
        if address.agent not in ("", self.settings.name):
            self._take_from_board(address, message)
        elif address.kind != "slices":
            return False
        elif self._run is not None:
            self._run.take_patch(address, message)
        return True

    def _take_from_board(self, address: Address, message: MqttMessage) -> None:
        if address.kind == "replies" and self._run is not None:
            self._run.take_reply(address, message)
        elif address.kind == "replies":
            self._note_early(address, message)
        elif address.kind == "presence" and message.payload:
            presence = parse(AgentPresence, message.payload, message.topic)
            if presence.agent == address.agent:
                self._take_presence(presence)
        elif address.kind == "telemetry" and self._run is not None:
            report = parse_telemetry(message.payload, message.topic)
            if isinstance(report, FailedMessage) and report.agent == address.agent:
                self._run.take_failure(report)

    def _take_presence(self, presence: AgentPresence) -> None:
        new = self._boards.take(presence)
        if presence.agent in self._boards:
            self._admission.add(presence.agent)
        else:
            self._admission.remove(presence.agent)
        if self._run is not None:
            self._run.add_clients(presence.agent, new)

    def _note_early(self, address: Address, message: MqttMessage) -> None:
        """Note a reply that the broker has kept for this relay, and that arrives before the run does."""
        header = ChunkHeader.decode(message.header)
        if header.index == header.count - 1 and len(self._early_replies) < MOST_EARLY:
            self._early_replies[header.digest] = address

    def _note_invalid(self, message: MqttMessage) -> None:
        self._admission.charge(self._admission.sender(message.topic), RECORD_UNITS)

    def _run_id(self) -> str | None:
        return None if self._run is None else self._run.store.run.run

    def _enter_run(self, message: RunMessage) -> None:
        if self._run is not None and self._run.store.run == message:
            return
        self._leave_run()
        store = self._store.open_run(message)
        self._run = SiteRun(self.settings.name, store, self._boards, self._transport, self.topics, self._admission)
        log.info("run %s", message.run)
        if self._early_round is not None:
            self._open_round(self._early_round, retained=True)

    def _leave_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _open_round(self, message: RoundMessage, *, retained: bool) -> None:
        if self._run is None or self._run_id() != message.run:
            self._early_round = message
        else:
            self._run.open_round(message, retained=retained)
            early, self._early_replies = self._early_replies, {}
            self._run.ask_again(early)

    def _take_inbox(self, message: ReceiptMessage | MissingMessage | StopMessage) -> None:
        if self._run is not None and not isinstance(message, StopMessage):
            self._run.take_inbox(message)

    def _reconnect(self, *, session_present: bool) -> None:
        if self._run is not None:
            self._run.reconnect(session_present=session_present)

    def _greet_coordinator(self) -> None:
        if self._run is not None:
            self._run.greet_coordinator()
