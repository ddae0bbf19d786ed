"""The latest state of each agent, for the status page. Nothing here decides anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fedquilt_common.types import Profile
from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.round.policy import KnownAgent
from fedquilt_server.status.board_energy import BoardEnergy
from fedquilt_server.status.health import BoardFacts, judge_health
from fedquilt_server.status.placement import Placement
from fedquilt_server.status.snapshot import BoardStatus, HealthState

MOST_SHOWN: Final = 10_000
"""At this length, the list drops agents that are offline."""


class HealthChange(NamedTuple):
    """A board whose health has changed, and its health before."""

    board: BoardStatus
    before: HealthState


class AgentList:
    """The latest presence and telemetry of each agent. All times are Unix times in seconds."""

    def __init__(self) -> None:
        self._agents: dict[str, BoardStatus] = {}
        self._energy: dict[str, BoardEnergy] = {}
        self._forgotten_boards, self._forgotten_joules = 0, 0.0
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
            fresh = _board_status(name, list(agent.clients), agent.workers, agent.profile, now)
            joules = self._energy[name].joules if name in self._energy else None
            self._agents[name] = fresh.model_copy(update={"joules": joules})

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
        energy = self._energy.setdefault(message.agent, BoardEnergy())
        energy.connect(now)
        fresh = fresh.model_copy(update={"is_relay": message.site_relay, "joules": energy.joules})
        if (before := self._agents.get(message.agent)) is not None:
            kept = before.model_dump(include=_KEPT_ON_PRESENCE)
            fresh = fresh.model_copy(update=kept if before.health != "never seen" else {})
        self._agents[message.agent] = fresh

    def update_online(self, agent: str, *, online: bool) -> None:
        """Show whether an agent is connected."""
        if agent in self._agents and self._agents[agent].online != online:
            self._change(agent, online=online, training={})

    def _make_room(self, agent: str) -> None:
        """Forget agents that are offline when the list is full; their energy stays in the sum."""
        if agent in self._agents or len(self._agents) < MOST_SHOWN:
            return
        self._agents = {name: status for name, status in self._agents.items() if status.online}
        gone = [self._energy.pop(name) for name in list(self._energy) if name not in self._agents]
        joules = [energy.joules for energy in gone if energy.joules is not None]
        self._forgotten_boards += len(joules)
        self._forgotten_joules += math.fsum(joules)

    def update_last_seen(self, agent: str, now: float) -> None:
        """Record that a message of ``agent`` arrived at ``now``."""
        if agent in self._agents:
            self._change(agent, last_seen=now)

    def update_telemetry(self, message: Telemetry, now: float, waited: float = 0.0) -> BoardStatus | None:
        """Replace an agent's telemetry; returns the agent. Telemetry of an unknown agent is ignored.

        Args:
            message: the telemetry.
            now: when it arrived, as a Unix time in seconds.
            waited: seconds for which the broker kept it.
        """
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
            joules=self._report_energy(message, status.interval, now, waited),
            load=message.load,
            throttled=message.throttled,
            training={int(c): p for c, p in message.training.items() if int(c) in hosted},
            last_seen=now,
            **({} if message.interval is None else {"interval": message.interval}),
        )

    def _report_energy(self, message: Telemetry, interval: float, now: float, waited: float) -> float | None:
        """Return the board's joules; ``interval``: seconds within which the message was due."""
        energy = self._energy.setdefault(message.agent, BoardEnergy())
        if message.joules is not None:
            energy.report(message, now - waited, now, interval)
        return energy.joules

    def restore_energy(self, joules: Mapping[str, float]) -> None:
        """Go on from the joules of each board that an earlier process has recorded."""
        self._energy = {name: BoardEnergy(before) for name, before in joules.items()}

    def settle_energy(self, now: float) -> float | None:
        """Bring the joules of the connected boards up to ``now``; returns those of all boards.

        None if no board has ever reported any.
        """
        for name, board in list(self._agents.items()):
            if board.online and (energy := self._energy.get(name)) is not None:
                energy.settle(now, board.interval)
                if energy.joules != board.joules:
                    self._change(name, joules=energy.joules)
        known = [energy.joules for energy in self._energy.values() if energy.joules is not None]
        return math.fsum([*known, self._forgotten_joules]) if known or self._forgotten_boards else None

    @property
    def energy_coverage(self) -> tuple[int, int]:
        """The number of boards that have reported energy, and of all that have been seen, without relays of sites."""
        reporting = self._forgotten_boards + sum(energy.joules is not None for energy in self._energy.values())
        seen = sum(board.health != "never seen" and not board.is_relay for board in self._agents.values())
        return reporting, max(reporting, seen)

    @property
    def energy_sources(self) -> set[str]:
        """Where the energy that this process counts comes from: sensor, meter or estimate."""
        energy = self._energy
        return {
            board.power_source for name, board in self._agents.items() if name in energy and energy[name].is_reported
        }

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
