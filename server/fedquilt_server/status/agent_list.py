"""The latest state of each agent, for the status page. Nothing here decides anything."""

from __future__ import annotations

from typing import Final

from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.round.policy import KnownAgent
from fedquilt_server.status.snapshot import BoardStatus

MOST_SHOWN: Final = 10_000
"""At this length, the list drops agents that are offline."""


class AgentList:
    """The latest presence and telemetry of each agent. All times are Unix times in seconds."""

    def __init__(self) -> None:
        self._agents: dict[str, BoardStatus] = {}

    def list(self) -> list[BoardStatus]:
        """List the agents in the order of their names."""
        return [self._agents[name] for name in sorted(self._agents)]

    def restore(self, name: str, agent: KnownAgent, now: float) -> None:
        """Show an agent of the journal until it publishes its presence again."""
        if name not in self._agents:
            self._make_room(name)
            self._agents[name] = _board_status(name, list(agent.clients), agent.profile, now)

    def update_presence(self, message: AgentPresence, now: float) -> None:
        """Show an agent that is online with the content of its presence."""
        self._make_room(message.agent)
        profile = Profile(**message.profile.model_dump())
        self._agents[message.agent] = _board_status(message.agent, message.clients, profile, now)

    def update_online(self, agent: str, *, online: bool) -> None:
        """Show whether an agent is connected."""
        if agent in self._agents and self._agents[agent].online != online:
            changes = {"online": online, "training": {}}
            self._agents[agent] = self._agents[agent].model_copy(update=changes)

    def _make_room(self, agent: str) -> None:
        """Forget agents that are offline when the list is full."""
        if agent not in self._agents and len(self._agents) >= MOST_SHOWN:
            self._agents = {name: status for name, status in self._agents.items() if status.online}

    def update_last_seen(self, agent: str, now: float) -> None:
        """Record that a message of ``agent`` arrived at ``now``."""
        if agent in self._agents:
            self._agents[agent] = self._agents[agent].model_copy(update={"last_seen": now})

    def update_telemetry(self, message: Telemetry, now: float) -> None:
        """Replace an agent's telemetry. Telemetry of an unknown agent is ignored."""
        status = self._agents.get(message.agent)
        if status is None:
            return
        hosted = set(status.clients)
        changes = {
            "memory_used": message.memory_used,
            "temperature": message.temperature,
            "power": message.power,
            "training": {int(c): p for c, p in message.training.items() if int(c) in hosted},
            "last_seen": now,
        }
        self._agents[message.agent] = status.model_copy(update=changes)


def _board_status(name: str, clients: list[int], profile: Profile, now: float) -> BoardStatus:
    return BoardStatus(
        agent=name,
        kind=profile.kind,
        clients=clients,
        cores=profile.cores,
        memory_total=profile.memory,
        last_seen=now,
    )
