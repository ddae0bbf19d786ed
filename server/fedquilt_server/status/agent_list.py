"""The boards as last heard of, for the page; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping

from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.round.policy import KnownAgent
from fedquilt_server.status.snapshot import BoardStatus


class AgentList:
    """Latest presence and telemetry of each agent."""

    def __init__(self) -> None:
        self._boards: dict[str, BoardStatus] = {}

    def list(self) -> list[BoardStatus]:
        return [self._boards[name] for name in sorted(self._boards)]

    def restore(self, agents: Mapping[str, KnownAgent], now: float) -> None:
        """What the journal knows, until the agents speak for themselves."""
        for name, agent in agents.items():
            self._boards[name] = _board(name, list(agent.clients), agent.profile, now)

    def presence(self, message: AgentPresence, now: float) -> None:
        if message.online:
            self._boards[message.agent] = _board(
                message.agent, message.clients, Profile(**message.profile.model_dump()), now
            )
        elif message.agent in self._boards:
            gone = {"online": False, "training": {}}
            self._boards[message.agent] = self._boards[message.agent].model_copy(update=gone)

    def heard(self, agent: str, now: float) -> None:
        """An agent has sent something."""
        if agent in self._boards:
            self._boards[agent] = self._boards[agent].model_copy(update={"last_seen": now})

    def telemetry(self, message: Telemetry, now: float) -> None:
        board = self._boards.get(message.agent)
        if board is None:
            return
        fresh = {
            "memory_used": message.memory_used,
            "temperature": message.temperature,
            "power": message.power,
            "training": {int(c): p for c, p in message.training.items() if c.isdigit()},
            "last_seen": now,
        }
        self._boards[message.agent] = board.model_copy(update=fresh)


def _board(name: str, clients: list[int], profile: Profile, now: float) -> BoardStatus:
    return BoardStatus(
        agent=name,
        kind=profile.kind,
        clients=clients,
        cores=profile.cores,
        memory_total=profile.memory,
        last_seen=now,
    )
