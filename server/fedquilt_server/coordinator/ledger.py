"""Books what each event costs its agent, and what is refunded because the agent's messages were of use.

These are of use: the messages of a reply that counts, and of the first refused reply of each claimed client in an
exchange. An agent that restarts sends the latter without any fault of its own.
"""

from __future__ import annotations

from collections import defaultdict

from fedquilt_common.types import ClientId
from fedquilt_common.wire.topics import Address
from fedquilt_server.coordinator.admission import Admission
from fedquilt_server.coordinator.flood_guard import RECORD_UNITS, REPLIES, FloodGuard, chunk_units
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import KnownAgent

ClientOfAgent = tuple[str, ClientId]


class Ledger:
    """What the messages of the open exchange cost.

    Args:
        machine: holds the clients that each agent claims and hosts.
        admission: charges the agents.
        guard: holds the agents' buckets.
        chunk: largest chunk of a reply in bytes.
        relays: names the agents that send for boards behind their site.
    """

    def __init__(
        self, machine: Machine, admission: Admission, guard: FloodGuard, chunk: int, relays: SiteRelays
    ) -> None:
        self._machine = machine
        self._relays = relays
        self._admission = admission
        self._guard = guard
        self._refusal_units = RECORD_UNITS + chunk_units(chunk)
        self._reply_units = self._last_units = 0.0
        self._spent: defaultdict[ClientOfAgent, float] = defaultdict(float)
        self._refused: set[ClientOfAgent] = set()
        self._claims: dict[str, tuple[KnownAgent, frozenset[ClientId]]] = {}

    def open(self, reply_units: float) -> None:
        """Begin an exchange, whose largest reply costs ``reply_units``; late replies to the last one still arrive."""
        self._reply_units, self._last_units = max(reply_units, self._last_units), reply_units
        self._guard.expect(self._reply_units)
        for agent in self._machine.agents:
            self.make_room(agent)
        self._spent.clear()
        self._refused.clear()

    def make_room(self, agent: str) -> None:
        """Let the buckets of an agent and of its relay hold one refusal of each client for which they send replies.

        An agent offers all its stored replies again with each manifest.
        """
        for sender in (agent, *self._relays.relays_of(agent)):
            self._guard.make_room(sender, self._relays.count_clients(sender) * self._refusal_units)

    def take(self, address: Address, size: int) -> None:
        """Note a chunk of a reply, which was charged when it arrived."""
        if self._is_claimed(address.agent, address.client) or self._relays.relays(address.agent, address.client):
            self._spent[address.agent, address.client] += chunk_units(size)

    def book(self, event: Event) -> None:
        """Charge an event that is journaled, and refund what was of use."""
        match event:
            case Joined() | Left():
                self._admission.charge(event.agent, RECORD_UNITS)
            case Replied():
                self._refund(event.sender, event.client)
            case Rejected(agent=agent, client=client):
                self._admission.charge(agent, RECORD_UNITS)
                if client is not None and self._is_claimed(agent, client) and (agent, client) not in self._refused:
                    self._refused.add((agent, client))
                    self._guard.refund(agent, RECORD_UNITS)
                    for sender in (agent, *self._relays.relays_of(agent)):
                        self._refund(sender, client)

    def _refund(self, agent: str, client: ClientId) -> None:
        spent = self._spent.pop((agent, client), 0.0)
        self._guard.refund(agent, min(spent, REPLIES * self._reply_units))

    def _is_claimed(self, agent: str, client: ClientId) -> bool:
        known = self._machine.agents.get(agent)
        if known is None:
            self._claims.pop(agent, None)
            return False
        if agent not in self._claims or self._claims[agent][0] is not known:
            self._claims[agent] = known, frozenset(known.clients)
        return client in self._claims[agent][1]
