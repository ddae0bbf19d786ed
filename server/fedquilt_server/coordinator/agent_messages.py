"""Turns the agents' presence and telemetry messages into events of the machine."""

from __future__ import annotations

from typing import Final

from fedquilt_common.errors import PayloadError, ProtocolError
from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence, FailedMessage, parse, parse_telemetry
from fedquilt_common.wire.topics import Address
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.refusals import Record, Refusals
from fedquilt_server.round.events import Joined, Left
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.snapshot import CLIENT_FAILED, StatusStore

MOST_AGENTS: Final = 10_000
"""Most agents that may be connected at a time."""
MOST_CLAIMS: Final = 1_000_000
"""Most clients that all connected agents may claim together."""


class AgentMessages:
    """Handles the messages that agents publish about themselves.

    Args:
        run: identifier of the run; failures of other runs are ignored.
        record: journals an event and passes it to the machine.
    """

    def __init__(
        self,
        run: str,
        machine: Machine,
        agents: AgentList,
        status: StatusStore,
        limit: RateLimit,
        refusals: Refusals,
        record: Record,
    ) -> None:
        self._run = run
        self._machine = machine
        self._agents = agents
        self._status = status
        self._limit = limit
        self._refusals = refusals
        self._record = record

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
            self._take_presence(presence)
        self._status.update(boards=self._agents.list())

    def _take_telemetry(self, address: Address, message: MqttMessage) -> None:
        telemetry = parse_telemetry(message.payload, message.topic)
        _check_sender(address, telemetry.agent)
        if isinstance(telemetry, FailedMessage):
            self._take_failure(telemetry)
        else:
            self._agents.update_telemetry(telemetry, clock.now())

    def _take_failure(self, failure: FailedMessage) -> None:
        if failure.run == self._run and failure.round == self._machine.round:
            self._refusals.add(failure.agent, failure.client, failure.round, f"{CLIENT_FAILED}{failure.reason}")

    def _take_presence(self, presence: AgentPresence) -> None:
        agent, now = self._machine.agents.get(presence.agent), clock.now()
        if presence.online:
            joined = _joined(presence, now)
            self._check_room(joined)
            self._agents.update_presence(presence, now)
            if agent != self._machine.agent_of(joined) and self._limit.may_join(presence.agent):
                self._check_claims(presence)
                self._record(joined)
        elif agent is not None and presence.boot >= agent.boot:
            self._agents.update_presence(presence, now)
            self._record(Left(now, presence.agent, presence.boot))

    def _check_room(self, joined: Joined) -> None:
        """Bound what the agents of a broker without access control make the coordinator hold.

        Raises:
            ProtocolError: there are too many agents, or they claim too many clients.
        """
        others = [agent for name, agent in self._machine.agents.items() if name != joined.agent]
        if len(others) >= MOST_AGENTS:
            raise ProtocolError(f"{MOST_AGENTS} agents are connected: stop some of them, or give the broker an ACL")
        claims = sum(len(agent.clients) for agent in others) + len(self._machine.agent_of(joined).clients)
        if claims > MOST_CLAIMS:
            raise ProtocolError(
                f"the agents claim {claims} clients together, at most {MOST_CLAIMS} are possible: "
                "let each agent claim the clients that it hosts"
            )

    def _check_claims(self, presence: AgentPresence) -> None:
        """Report claimed clients that another agent already hosts, or that the experiment does not have."""
        hosts, clients = self._machine.host_of, self._machine.policy.clients
        taken = [c for c in presence.clients if hosts.get(c, presence.agent) != presence.agent]
        unknown = [c for c in presence.clients if c >= clients]
        if taken:
            reason = f"clients {taken[:8]} have another agent"
            self._refusals.add(presence.agent, taken[0], self._machine.round, reason)
        if unknown:
            reason = f"the experiment has clients 0 to {clients - 1} only"
            self._refusals.add(presence.agent, unknown[0], self._machine.round, reason)


def _joined(presence: AgentPresence, now: float) -> Joined:
    profile = Profile(**presence.profile.model_dump())
    return Joined(now, presence.agent, presence.boot, tuple(presence.clients), presence.workers, profile)


def _check_sender(address: Address, agent: str) -> None:
    if agent != address.agent:
        raise PayloadError(f"agent {agent} published on the topic of agent {address.agent}")
