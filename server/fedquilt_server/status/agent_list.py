"""The latest state of each agent, for the status page. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.round.policy import KnownAgent
from fedquilt_server.status.health import BoardFacts, judge_health
from fedquilt_server.status.placement import Placement
from fedquilt_server.status.snapshot import BoardStatus, HealthState

MOST_SHOWN: Final = 10_000
"""At this length, the list drops agents that are offline."""


class HealthChange(NamedTuple):
    """A board whose health has changed, and its health before."""

    board: BoardStatus
    before: HealthState


@dataclass
class _Energy:
    """The energy of one agent: joules since it first reported them, and its last report.

    Attributes:
        boot: number of the agent's start.
        reported: joules of the last report, which count from that start.
        at: Unix time in seconds of the last report.
        watts: its power then.
    """

    boot: int
    reported: float
    at: float
    watts: float
    total: float = 0.0


class AgentList:
    """The latest presence and telemetry of each agent. All times are Unix times in seconds."""

    def __init__(self) -> None:
        self._agents: dict[str, BoardStatus] = {}
        self._energy: dict[str, _Energy] = {}
        self._cut_off: set[str] = set()

    def boards(self) -> list[BoardStatus]:
        """List the agents in the order of their names."""
        return [self._agents[name] for name in sorted(self._agents)]

    def find(self, agent: str) -> BoardStatus | None:
        """Return one agent; None if it is unknown."""
        return self._agents.get(agent)

    def behind(self, site: str) -> int:
        """Return the number of boards that connect through a site, without its relay."""
        return sum(board.site == site and not board.is_relay for board in self._agents.values())

    def update_site(self, site: str, *, connected: bool) -> bool:
        """Note whether a site's bridge is connected; returns whether that has changed."""
        changed = connected == (site in self._cut_off)
        self._cut_off = self._cut_off - {site} if connected else self._cut_off | {site}
        return changed

    def restore(self, name: str, agent: KnownAgent, now: float) -> None:
        """Show an agent of the journal until it publishes its presence again."""
        if name not in self._agents or self._agents[name].health == "never seen":
            self._make_room(name)
            self._agents[name] = _board_status(name, list(agent.clients), agent.workers, agent.profile, now)

    def expect(self, boards: Mapping[str, Sequence[int]]) -> None:
        """Show boards that have not connected yet, with the clients that are assigned to them."""
        for name, clients in boards.items():
            if name not in self._agents:
                reason = "its agent has not connected since the run began"
                self._agents[name] = BoardStatus(
                    agent=name, kind="", online=False, health="never seen", reason=reason, clients=list(clients)
                )

    def place(self, placements: Sequence[Placement]) -> None:
        """Show where a cluster runs the agents, even those that have not connected yet."""
        self.expect({one.agent: one.clients for one in placements})
        for one in placements:
            self._change(one.agent, placement=one)

    def update_presence(self, message: AgentPresence, now: float) -> None:
        """Show an agent that is online with the content of its presence; its readings stay."""
        self._make_room(message.agent)
        profile = Profile(**message.profile.model_dump())
        fresh = _board_status(message.agent, message.clients, message.workers, profile, now, message.site or "")
        fresh = fresh.model_copy(update={"is_relay": message.site_relay})
        if (before := self._agents.get(message.agent)) is not None:
            kept = before.model_dump(include=_KEPT_ON_PRESENCE)
            fresh = fresh.model_copy(update=kept if before.health != "never seen" else {})
        self._agents[message.agent] = fresh

    def update_online(self, agent: str, *, online: bool) -> None:
        """Show whether an agent is connected."""
        if agent in self._agents and self._agents[agent].online != online:
            self._change(agent, online=online, training={})

    def _make_room(self, agent: str) -> None:
        """Forget agents that are offline when the list is full."""
        if agent not in self._agents and len(self._agents) >= MOST_SHOWN:
            self._agents = {name: status for name, status in self._agents.items() if status.online}

    def update_last_seen(self, agent: str, now: float) -> None:
        """Record that a message of ``agent`` arrived at ``now``."""
        if agent in self._agents:
            self._change(agent, last_seen=now)

    def update_telemetry(self, message: Telemetry, now: float) -> BoardStatus | None:
        """Replace an agent's telemetry; returns the agent. Telemetry of an unknown agent is ignored."""
        status = self._agents.get(message.agent)
        if status is None:
            return None
        hosted = set(status.clients)
        return self._change(
            message.agent,
            memory_used=message.memory_used,
            memory_own=message.memory_own,
            temperature=message.temperature,
            power=message.power,
            power_source=message.power_source,
            joules=self._add_energy(message, now),
            load=message.load,
            throttled=message.throttled,
            training={int(c): p for c, p in message.training.items() if int(c) in hosted},
            last_seen=now,
            **({} if message.interval is None else {"interval": message.interval}),
        )

    def _add_energy(self, message: Telemetry, now: float) -> float | None:
        """Return the joules since the agent first reported them; a restarted agent counts from 0 again."""
        if message.joules is None:
            return self._energy[message.agent].total if message.agent in self._energy else None
        energy = self._energy.setdefault(message.agent, _Energy(message.boot, message.joules, now, 0.0))
        before = energy.reported if energy.boot == message.boot and message.joules >= energy.reported else 0.0
        energy.total += message.joules - before
        energy.boot, energy.reported, energy.at, energy.watts = message.boot, message.joules, now, message.power or 0.0
        return energy.total

    def total_joules(self, now: float) -> float | None:
        """Return the joules of all boards up to now; None if no board reports them.

        Since its last report, a connected board is assumed to take the power of that report, but not for longer than
        until its next report is due.
        """
        if not self._energy:
            return None
        return sum(energy.total + self._since_report(name, now) for name, energy in self._energy.items())

    def _since_report(self, agent: str, now: float) -> float:
        board, energy = self._agents.get(agent), self._energy[agent]
        if board is None or not board.online:
            return 0.0
        return energy.watts * min(max(0.0, now - energy.at), board.interval)

    @property
    def is_estimated(self) -> bool:
        """Whether a board estimates its power."""
        return any(self._agents[name].power_source == "estimate" for name in self._energy if name in self._agents)

    def refresh(self, facts: Mapping[str, BoardFacts], now: float) -> list[HealthChange]:
        """Judge the health of all boards that have been seen; returns those whose state has changed."""
        changes: list[HealthChange] = []
        for name, board in list(self._agents.items()):
            if board.health == "never seen":
                continue
            fact = facts.get(name, BoardFacts())._replace(is_cut_off=board.site in self._cut_off)
            counted = board.model_copy(update=fact.counts())
            health, reason = judge_health(counted, fact, now)
            since = now if health != board.health else board.since
            fresh = counted.model_copy(update={"health": health, "reason": reason, "since": since})
            if fresh != board:
                self._agents[name] = fresh
            if health != board.health:
                changes.append(HealthChange(fresh, board.health))
        return changes

    def _change(self, agent: str, **changes: object) -> BoardStatus:
        status = self._agents[agent] = self._agents[agent].model_copy(update=changes)
        return status


_KEPT_ON_PRESENCE: Final = {
    "health", "reason", "since", "memory_used", "memory_own", "temperature", "power", "power_source", "joules", "load",
    "throttled", "interval", "restarts", "accepted", "late", "rejected", "placement",
}  # fmt: skip


def _board_status(
    name: str, clients: list[int], workers: int, profile: Profile, now: float, site: str = ""
) -> BoardStatus:
    return BoardStatus(
        agent=name,
        kind=profile.kind,
        site=site,
        clients=clients,
        workers=workers,
        cores=profile.cores,
        memory_total=profile.memory,
        since=now,
        last_seen=now,
    )
