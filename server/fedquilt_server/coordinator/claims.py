"""Decides which agents are connected, and which clients each one may claim.

A claim lives as long as its agent's messages arrive. The broker may keep the presence of a board that is gone, so a
retained presence alone proves nothing: an agent with a live message takes its clients from an agent without one. A
revoked board has no claim at all. The machine sees the result as ``Joined`` and ``Left``, so a replay gives the same
hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fedquilt_common.errors import ProtocolError
from fedquilt_common.flood_control.limits import MOST_AGENTS, MOST_CLAIMS
from fedquilt_common.plurals import plural
from fedquilt_common.types import Assignments, ClientId, Profile
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.refusals import Record, Refusals
from fedquilt_server.coordinator.same_id import SameId
from fedquilt_server.round.events import Joined, Left
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.status.waiting import ranges

SILENCE_SECONDS: Final = 90.0
"""An agent without any message for this time is handled as gone; agents of earlier versions pause for 30 s."""
LONGEST_STEP: Final = 1.0
"""Longest pause between two looks at the inbox that counts as silence of the agents."""
_CHECK_SECONDS: Final = 1.0
_SHOWN: Final = 8
"""Clients that a reason lists."""
_OTHERWISE: Final = "otherwise, give one of the agents other `clients`"

_ALL_FREE: Final = Assignments()


def all_free() -> Assignments:
    """Return the assignments of a federation without an inventory: every client is free."""
    return _ALL_FREE


@dataclass
class _Claim:
    """What an agent last published about itself.

    Attributes:
        joined: the presence, with all claimed clients, including those that belong to others.
        last_message_at: when a message of the agent last arrived, in seconds of listening.
        live: whether a message has arrived that the broker did not keep.
        unknown: a claimed client that the experiment does not have; ``joined`` has only the others.
        lost: whether the agent was handled as gone since then.
        departed: whether the agent itself, or its will, has reported that since then.
    """

    joined: Joined
    last_message_at: float
    live: bool
    unknown: ClientId | None = None
    lost: bool = False
    departed: bool = False


class Claims:
    """The claims of all agents; it records ``Joined`` and ``Left``.

    Args:
        machine: the run's machine, which assigns the hosts.
        limit: limits the joins of each agent.
        refusals: reports claims without effect.
        record: journals an event and passes it to the machine.
        clear_presence: clears what the broker retains of an agent's presence.
        read_assignments: returns those of the inventory; the same object if nothing has changed.
    """

    def __init__(
        self,
        machine: Machine,
        limit: RateLimit,
        refusals: Refusals,
        record: Record,
        clear_presence: Callable[[str], None],
        read_assignments: Callable[[], Assignments] = all_free,
    ) -> None:
        self._machine = machine
        self._limit = limit
        self._refusals = refusals
        self._record = record
        self._clear_presence = clear_presence
        self._read_assignments = read_assignments
        self._assignments = read_assignments()
        self._turned_away: set[str] = set()
        self._claims: dict[str, _Claim] = {}
        self._claimed = 0  # clients, over all claims
        self._postponed: set[str] = set()
        self._dropped: set[str] = set()
        self._same_id = SameId(lambda agent, reason: self._refuse(agent, None, reason))
        self._listened = self._next_check = 0.0
        self._looked_at = clock.now()

    def __contains__(self, agent: str) -> bool:
        """Whether an agent is connected, or silent for too long; not if it has left."""
        return agent in self._claims and not self._claims[agent].departed

    def restore(self) -> None:
        """Keep the agents of the journal as connected; each one has ``SILENCE_SECONDS`` for its first message."""
        now = clock.now()
        for name, agent in self._machine.agents.items():
            joined = Joined(now, name, agent.boot, agent.clients, agent.workers, agent.profile)
            self._set(name, _Claim(joined, self._listened, live=True))
        self._judge_again()

    def drop(self, agent: str) -> None:
        """Treat an agent as gone, whatever it publishes, until it is readmitted."""
        self._dropped.add(agent)
        if agent in self._machine.agents:
            self._leave(agent)

    def readmit(self, agent: str) -> None:
        """Let an agent that was dropped join again: now if it is there, else with its next message."""
        self._dropped.discard(agent)
        claim = self._claims.get(agent)
        if claim is not None and not claim.departed and not self._is_silent(agent):
            self._prove(claim)
            self._join(claim)

    @property
    def revoked(self) -> frozenset[str]:
        """The boards that the inventory lists as revoked."""
        return self._assignments.revoked

    # -- messages of agents --------------------------------------------------------------------

    def check_room(self, presence: AgentPresence) -> None:
        """Bound what the agents of a broker without access control make the coordinator hold.

        Raises:
            ProtocolError: there are too many agents, or they claim too many clients.
        """
        own = len(_joined(presence, self._machine.policy.clients).clients)
        agents, claims = self._count_others(presence.agent)
        if agents >= MOST_AGENTS or own + claims > MOST_CLAIMS:
            for name in [name for name, claim in self._claims.items() if claim.lost]:
                self._set(name, None)
            agents, claims = self._count_others(presence.agent)
        if agents >= MOST_AGENTS:
            raise ProtocolError(f"{MOST_AGENTS} agents are connected: stop some of them, or give the broker an ACL")
        if own + claims > MOST_CLAIMS:
            raise ProtocolError(
                f"the agents claim {own + claims} clients together, at most {MOST_CLAIMS} are possible: "
                "let each agent claim the clients that it hosts"
            )

    def _count_others(self, agent: str) -> tuple[int, int]:
        """Return the number of the other agents, and of the clients that they claim."""
        own = self._claims.get(agent)
        return len(self._claims) - (own is not None), self._claimed - (len(own.joined.clients) if own else 0)

    def _set(self, agent: str, claim: _Claim | None) -> None:
        """Replace an agent's claim; None forgets it. Keeps the sum of all claims, which each presence asks for."""
        before = self._claims.get(agent)
        self._claimed += (len(claim.joined.clients) if claim else 0) - (len(before.joined.clients) if before else 0)
        if claim is not None:
            self._claims[agent] = claim
        else:
            self._claims.pop(agent, None)

    def take(self, presence: AgentPresence, *, retained: bool) -> None:
        """Handle a presence message; ``retained``: the broker had stored it, so its agent may be gone."""
        if presence.agent in self._assignments.revoked:
            self._reread_assignments()  # the board may have a new identity
        if presence.agent in self._assignments.revoked:
            self._turn_away(presence.agent, live=presence.online and not retained)
            return
        before = self._claims[presence.agent] if presence.agent in self else None
        if not presence.online:
            self._depart(presence, before)
        elif not (retained and before is not None and before.lost and presence.boot == before.joined.boot):
            self._same_id.arrive(presence, self._listened)
            self._arrive(presence, before, live=not retained)

    def note_message(self, agent: str, boot: int | None = None) -> None:
        """Note that another live message of an agent has arrived. It brings back an agent that was gone.

        After a restart of the broker, a will is followed by the replies that the MQTT client resends. The agent's
        presence comes after them.

        Args:
            boot: the start of the agent that the message names, if it does.
        """
        if boot is not None:
            self._same_id.note_message(agent, boot, self._listened)
        claim = self._claims.get(agent)
        if claim is None:
            return
        claim.last_message_at = self._listened
        if not claim.live:
            self._prove(claim)
        if self._is_gone(claim):
            self._join(claim)

    def _arrive(self, presence: AgentPresence, before: _Claim | None, *, live: bool) -> None:
        last_message_at = self._listened if live or before is None else before.last_message_at
        known = self._machine.policy.clients
        joined, unknown = _joined(presence, known), next((c for c in presence.clients if c >= known), None)
        claim = _Claim(joined, last_message_at, before is not None and before.live, unknown)
        self._set(presence.agent, claim)
        if live:
            self._prove(claim)
        if before is None or _content(claim) != _content(before) or self._differs(claim):
            self._join(claim)

    def _depart(self, presence: AgentPresence, before: _Claim | None) -> None:
        if before is not None and presence.boot >= before.joined.boot:
            if not self._is_gone(before):
                self._leave(presence.agent)
            before.live, before.lost, before.departed = False, True, True

    # -- time ----------------------------------------------------------------------------------

    def start_listening(self) -> None:
        """Start the time of every agent again: no message could arrive while the broker was away."""
        self._looked_at = clock.now()
        self._same_id.start_listening(self._listened)
        for claim in self._claims.values():
            claim.last_message_at = self._listened

    def check(self) -> None:
        """Drop agents that are silent, and apply a changed inventory; called between two messages.

        Silence counts only while the coordinator listens, so a long evaluation or a stopped process drops nobody.
        """
        now = clock.now()
        self._listened += min(now - self._looked_at, LONGEST_STEP)
        self._looked_at = now
        if self._listened >= self._next_check:
            self._next_check = self._listened + min(_CHECK_SECONDS, SILENCE_SECONDS / 3)
            self._reread_assignments()
            self._join_postponed()
            for name in [name for name in self._machine.agents if self._is_silent(name)]:
                self._leave(name)

    @property
    def listened(self) -> float:
        """Seconds in which the coordinator has listened: not without a broker, nor while it was busy or frozen."""
        return self._listened

    def silences(self) -> dict[str, float]:
        """Return the seconds without a message of each agent, as far as the coordinator listened."""
        return {name: self._listened - claim.last_message_at for name, claim in self._claims.items()}

    def _is_silent(self, agent: str) -> bool:
        return self._listened - self._claims[agent].last_message_at >= SILENCE_SECONDS

    # -- clients -------------------------------------------------------------------------------

    def _prove(self, claim: _Claim) -> None:
        """Mark an agent as live; those that claim its clients without a live message of their own are gone."""
        claim.live, claim.lost, claim.departed = True, False, False
        clients = self._allowed(claim.joined)
        while stale := self._stale_hosts(clients):
            for agent in stale:
                self._leave(agent)

    def _stale_hosts(self, clients: Iterable[ClientId]) -> list[str]:
        hosts = dict.fromkeys(self._machine.host_of[c] for c in clients if c in self._machine.host_of)
        return [agent for agent in hosts if not self._claims[agent].live]

    def _join(self, claim: _Claim) -> None:
        """Report the claims without effect, and join the agent with the others; postpone this beyond its limit."""
        if claim.joined.agent in self._dropped:
            return
        if not self._limit.count_join(claim.joined.agent):
            self._postponed.add(claim.joined.agent)
        else:
            self._report(claim)
            if self._differs(claim):
                self._record(self._allowed_part(claim))

    def _join_postponed(self) -> None:
        """Try again the joins that were beyond the limit."""
        claims, self._postponed = [self._claims.get(agent) for agent in self._postponed], set()
        for claim in claims:
            if claim is not None and not claim.lost and self._differs(claim):
                self._join(claim)

    def _leave(self, agent: str) -> None:
        """Treat an agent as gone until its next live message."""
        claim = self._claims[agent]
        claim.live, claim.lost = False, True
        self._record(Left(clock.now(), agent, self._machine.agents[agent].boot))

    def _differs(self, claim: _Claim) -> bool:
        """Whether the machine holds something else of this agent."""
        return self._machine.agents.get(claim.joined.agent) != self._machine.policy.agent_of(self._allowed_part(claim))

    def _allowed_part(self, claim: _Claim) -> Joined:
        return replace(claim.joined, at=clock.now(), clients=self._allowed(claim.joined))

    def _is_gone(self, claim: _Claim) -> bool:
        return claim.joined.agent not in self._machine.agents

    def _allowed(self, joined: Joined) -> tuple[ClientId, ...]:
        owners = self._assignments.owners
        if joined.agent in self._dropped:
            return ()
        return tuple(c for c in joined.clients if owners.get(c, joined.agent) == joined.agent)

    def _reread_assignments(self) -> None:
        assignments = self._read_assignments()
        if assignments is not self._assignments:
            self._assignments = assignments
            self._turned_away.clear()
            self._judge_again()

    def _judge_again(self) -> None:
        """Apply the inventory to all known agents."""
        for agent in sorted(self._assignments.revoked & set(self._claims)):
            self._dismiss(agent)
        for agent in list(self._machine.agents):
            if self._differs(self._claims[agent]):
                self._join(self._claims[agent])

    def _dismiss(self, agent: str) -> None:
        """Treat a revoked board as gone.

        The broker refuses its last will. So it would retain for ever that the board is online.
        """
        if not self._is_gone(self._claims[agent]):
            self._leave(agent)
        self._set(agent, None)
        self._clear_presence(agent)

    def _turn_away(self, agent: str, *, live: bool) -> None:
        """Clear the presence of a revoked board, and report once that the broker still accepts the board."""
        self._clear_presence(agent)
        if live and agent not in self._turned_away:
            self._turned_away.add(agent)
            reason = "is revoked, but the broker accepts it: give the broker its new revocation list and ACL"
            self._refuse(agent, None, f"{agent} {reason}")

    def _report(self, claim: _Claim) -> None:
        """Report claimed clients that belong to another board, are hosted already, or do not exist."""
        agent, hosts, allowed = claim.joined.agent, self._machine.host_of, self._allowed(claim.joined)
        owners = self._assignments.owners
        foreign = [c for c in claim.joined.clients if owners.get(c, agent) != agent]
        taken = [c for c in allowed if hosts.get(c, agent) != agent]
        if foreign:
            names = _agents_of(foreign[:_SHOWN], owners)
            self._refuse(agent, foreign[0], f"the inventory assigns {_name(foreign[:_SHOWN])} to {names}")
        if taken:
            names = _agents_of(taken[:_SHOWN], hosts)
            advice = f"A client moves when its agent leaves or is silent for {SILENCE_SECONDS:g} s; {_OTHERWISE}"
            self._refuse(agent, taken[0], f"already hosted by {names}: {_name(taken[:_SHOWN])}. {advice}")
        if claim.unknown is not None:
            last = self._machine.policy.clients - 1
            self._refuse(agent, claim.unknown, f"the experiment has clients 0 to {last} only")

    def _refuse(self, agent: str, client: ClientId | None, reason: str) -> None:
        self._refusals.add(agent, client, self._machine.round, reason)


def _name(clients: Sequence[ClientId]) -> str:
    return f"{plural('client', len(clients))} {ranges(clients)}"


def _agents_of(clients: Iterable[ClientId], hosts: Mapping[ClientId, str]) -> str:
    """Return the agents of some clients, each once, as a text."""
    return ", ".join(dict.fromkeys(hosts[client] for client in clients))


def _joined(presence: AgentPresence, known: int) -> Joined:
    """Return the event of a presence, with the clients that the experiment has."""
    profile, clients = Profile(**presence.profile.model_dump()), tuple(c for c in presence.clients if c < known)
    return Joined(clock.now(), presence.agent, presence.boot, clients, presence.workers, profile)


def _content(claim: _Claim) -> tuple[Joined, ClientId | None]:
    """Return what an agent has published, without the time, to compare two claims."""
    return replace(claim.joined, at=0.0), claim.unknown
