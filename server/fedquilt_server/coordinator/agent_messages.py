"""Passes on what agents publish about themselves: presence to the claims, telemetry to the page."""

from __future__ import annotations

from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.messages import AgentPresence, FailedMessage, Telemetry
from fedquilt_common.wire.parsing import parse, parse_telemetry
from fedquilt_common.wire.topics import Address
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.coordinator.claims import Claims
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.snapshot import CLIENT_FAILED, StatusStore


class AgentMessages:
    """Handles the messages that agents publish about themselves.

    Args:
        run: identifier of the run; failures of other runs are ignored.
        claims: receives every presence and every sign of life.
        limit: remembers the failures that are journaled; agents repeat them.
    """

    def __init__(
        self,
        run: str,
        machine: Machine,
        agents: AgentList,
        status: StatusStore,
        claims: Claims,
        refusals: Refusals,
        limit: RateLimit,
    ) -> None:
        self._run = run
        self._machine = machine
        self._agents = agents
        self._status = status
        self._claims = claims
        self._refusals = refusals
        self._limit = limit

    def take(self, address: Address, message: MqttMessage) -> None:
        """Handle one message.

        Raises:
            ProtocolError: the message breaks the protocol.
        """
        if address.kind == "telemetry":
            self._take_telemetry(address, message)
        elif address.kind == "presence":
            presence = parse(AgentPresence, message.payload, message.topic)
            _check_sender(address, presence.agent)
            if not message.retained:
                self._limit.forget_failures(presence.agent)
            if presence.online:
                self._claims.check_room(presence)
                self._agents.update_presence(presence, clock.now())
            self._claims.take(presence, retained=message.retained)
            self._agents.update_online(presence.agent, online=presence.agent in self._machine.agents)
        self._status.update(boards=self._agents.list())

    def _take_telemetry(self, address: Address, message: MqttMessage) -> None:
        telemetry = parse_telemetry(message.payload, message.topic)
        _check_sender(address, telemetry.agent)
        if isinstance(telemetry, FailedMessage):
            self._claims.note_message(telemetry.agent)
            self._take_failure(telemetry)
        else:
            self._claims.note_message(telemetry.agent, telemetry.boot)
            if isinstance(telemetry, Telemetry):
                self._agents.update_telemetry(telemetry, clock.now())

    def _take_failure(self, failure: FailedMessage) -> None:
        exchange = self._machine.exchange
        if failure.run == self._run and failure.round == self._machine.round:
            if self._limit.is_repeated(failure.agent, failure.client, failure.reason):
                return
            failed = exchange is not None and failure.exchange == exchange.number
            reason = f"{CLIENT_FAILED}{failure.reason}"
            self._refusals.add(failure.agent, failure.client, failure.round, reason, failed=failed)


def _check_sender(address: Address, agent: str) -> None:
    if agent != address.agent:
        raise PayloadError(f"agent {agent} published on the topic of agent {address.agent}")
