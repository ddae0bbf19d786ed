"""Passes on what agents publish about themselves: presence to the claims, telemetry to the page."""

from __future__ import annotations

from typing import Final

from fedquilt_common.errors import PayloadError
from fedquilt_common.plurals import counted
from fedquilt_common.wire.messages import (
    MEMORY_LOST,
    OUT_OF_MEMORY,
    AgentPresence,
    FailedMessage,
    NoticeMessage,
    Telemetry,
)
from fedquilt_common.wire.mqtt_limits import MESSAGE_EXPIRY
from fedquilt_common.wire.parsing import parse, parse_telemetry
from fedquilt_common.wire.topics import BRIDGE_DOWN, BRIDGE_UP, Address
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.coordinator.claims import Claims
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.history.history import History
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.run_event import EventKind
from fedquilt_server.status.snapshot import CLIENT_DECLINES, CLIENT_FAILED, BoardStatus, StatusStore

RELAY_SECONDS: Final = 10.0
"""How long the relay of a site may connect later than its boards before it is reported."""
_NOTICE_EVENTS: Final[dict[str, EventKind]] = {OUT_OF_MEMORY: "out of memory", MEMORY_LOST: "memory lost"}
"""The event of each kind of notice; that of all others is ``notice``."""


class AgentMessages:
    """Handles the messages that agents publish about themselves.

    Args:
        run: identifier of the run; failures of other runs are ignored.
        history: receives the boards' readings and notices.
        claims: receives every presence and every sign of life.
        limit: remembers the failures that are journaled; agents repeat them.
        relays: receives every presence, too.
    """

    def __init__(
        self,
        run: str,
        history: History,
        machine: Machine,
        agents: AgentList,
        status: StatusStore,
        claims: Claims,
        refusals: Refusals,
        limit: RateLimit,
        relays: SiteRelays,
    ) -> None:
        self._run = run
        self._history = history
        self._machine = machine
        self._agents = agents
        self._status = status
        self._claims = claims
        self._refusals = refusals
        self._limit = limit
        self._relays = relays
        self._missing_since: dict[str, float] = {}
        self._reported: set[str] = set()

    def take(self, address: Address, message: MqttMessage) -> None:
        """Handle one message.

        Raises:
            ProtocolError: the message breaks the protocol.
        """
        if address.kind == "telemetry":
            self._take_telemetry(address, message)
        elif address.kind == "sites":
            self._take_site(address.site, message)
        elif address.kind == "presence":
            presence = parse(AgentPresence, message.payload, message.topic)
            _check_sender(address, presence.agent)
            if not message.retained:
                self._limit.forget_failures(presence.agent)
            if presence.online and presence.site_relay and not self._relays.is_named(presence.agent, presence.site):
                return  # the broker retains it of a relay that is withdrawn
            before = self._agents.find(presence.agent)
            if presence.online:
                self._claims.check_room(presence)
                self._agents.update_presence(presence, clock.now())
            self._relays.take(presence)
            self._claims.take(presence, retained=message.retained)
            self._agents.update_online(presence.agent, online=presence.agent in self._machine.agents)
            if before is not None and before.is_relay:
                self._note_relay(before, online=presence.agent in self._machine.agents)
        self._status.update(boards=self._agents.boards())

    def _note_relay(self, before: BoardStatus, *, online: bool) -> None:
        """Write down that the relay of a site has left or come back."""
        if before.online and not online and before.site is not None:
            self._report_relay(before.agent, before.site)
        elif online and not before.online:
            self._history.add("back", clock.now(), f"The relay of site {before.site} is connected again")

    def _report_relay(self, relay: str, site: str) -> None:
        text = f"The relay of site {site} is offline: the replies of its boards wait there"
        self._history.add("site cut off", clock.now(), text)
        self._reported.add(relay)

    def check_relays(self, now: float) -> None:
        """Write down which relays have not connected although boards of their sites have.

        Args:
            now: Unix time in seconds.
        """
        missing = self._relays.missing
        self._missing_since = {relay: self._missing_since.get(relay, now) for relay in missing}
        self._reported &= missing.keys()
        for relay, since in self._missing_since.items():
            if relay not in self._reported and now >= since + RELAY_SECONDS:
                self._report_relay(relay, missing[relay])

    def _take_site(self, site: str, message: MqttMessage) -> None:
        """Note whether a site's bridge is connected, and write down when that changes."""
        if message.payload not in (BRIDGE_UP, BRIDGE_DOWN):
            raise PayloadError(f"the bridge of the site {site} published {message.payload[:20]!r}, not 0 or 1")
        connected = message.payload == BRIDGE_UP
        if not self._agents.update_site(site, connected=connected):
            return
        behind = counted(self._agents.behind(site), "board")
        if connected:
            self._history.add("back", clock.now(), f"Site {site} is connected again ({behind} behind it)")
        else:
            self._history.add("site cut off", clock.now(), f"Site {site} is cut off ({behind} behind it)")

    def _take_telemetry(self, address: Address, message: MqttMessage) -> None:
        telemetry = parse_telemetry(message.payload, message.topic)
        _check_sender(address, telemetry.agent)
        if isinstance(telemetry, FailedMessage):
            self._claims.note_message(telemetry.agent)
            self._take_failure(telemetry)
        else:
            self._claims.note_message(telemetry.agent, telemetry.boot)
            if isinstance(telemetry, Telemetry):
                self._take_readings(telemetry, _seconds_waited(message))
            else:
                self._take_notice(telemetry)

    def _take_readings(self, telemetry: Telemetry, waited: float) -> None:
        now = clock.now()
        if (board := self._agents.update_telemetry(telemetry, now, waited)) is not None:
            self._history.add_telemetry(board, now)

    def _take_notice(self, notice: NoticeMessage) -> None:
        """Write what an agent reports for people; an agent that reports too much is not written down."""
        if notice.run not in (None, self._run) or not self._limit.count_refusal(notice.agent):
            return
        now, kind = clock.now(), _NOTICE_EVENTS.get(notice.kind, "notice")
        if notice.kind == OUT_OF_MEMORY:
            self._history.counts_of(notice.agent).out_of_memory_at = now
        self._history.add(kind, now, notice.text, board=notice.agent, client=notice.client, exchange=notice.exchange)

    def _take_failure(self, failure: FailedMessage) -> None:
        exchange = self._machine.exchange
        asked = None if exchange is None else exchange.asked(failure.client)
        failed = asked == (failure.round, failure.exchange)
        if failure.run == self._run and (failed or failure.round == self._machine.round):
            if not self._limit.note_failure(failure.agent, failure.client, failure.reason):
                return
            declined = failure.declined and exchange is not None and failure.client in exchange.missing
            declined = declined and self._machine.host_of.get(failure.client) == failure.agent
            reason = f"{CLIENT_DECLINES if failure.declined else CLIENT_FAILED}{failure.reason}"
            self._refusals.add(failure.agent, failure.client, failure.round, reason, failed=failed, declined=declined)


def _check_sender(address: Address, agent: str) -> None:
    if agent != address.agent:
        raise PayloadError(f"agent {agent} published on the topic of agent {address.agent}")


def _seconds_waited(message: MqttMessage) -> int:
    """Return for how long the broker kept a message that is not retained: it counts down the message's expiry."""
    return 0 if message.expires_in is None else max(0, MESSAGE_EXPIRY - message.expires_in)
