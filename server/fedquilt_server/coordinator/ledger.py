"""Books what each event of the journal costs its agent: an agent pays only for clients that it claims."""

from __future__ import annotations

from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.flood_control.flood_guard import RECORD_UNITS
from fedquilt_common.flood_control.reply_costs import ReplyCosts
from fedquilt_common.types import ClientId
from fedquilt_common.wire.topics import Address
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import KnownAgent


class Ledger:
    """What the messages of the open exchange cost.

    Args:
        machine: holds the clients that each agent claims and hosts.
        admission: charges the agents.
        chunk: largest chunk of a reply in bytes.
        relays: names the agents that send for boards behind their site.
    """

    def __init__(self, machine: Machine, admission: Admission, chunk: int, relays: SiteRelays) -> None:
        self._machine = machine
        self._relays = relays
        self._admission = admission
        self._costs = ReplyCosts(admission, chunk)
        self._claims: dict[str, tuple[KnownAgent, frozenset[ClientId]]] = {}

    def open(self, reply_units: float) -> None:
        """Begin an exchange, whose largest reply costs ``reply_units``; late replies to the last one still arrive."""
        self._costs.open(reply_units)
        for agent in self._machine.agents:
            self.make_room(agent)

    def make_room(self, agent: str) -> None:
        """Let the buckets of an agent and of its relay hold one refusal of each client for which they send replies."""
        for sender in (agent, *self._relays.relays_of(agent)):
            self._costs.make_room(sender, self._relays.count_clients(sender))

    def take(self, address: Address, size: int) -> None:
        """Note a chunk of a reply, which was charged when it arrived."""
        if self._is_claimed(address.agent, address.client) or self._relays.relays(address.agent, address.client):
            self._costs.spend(address.agent, address.client, size)

    def book(self, event: Event) -> None:
        """Charge an event that is journaled, and refund what was of use."""
        match event:
            case Joined() | Left():
                self._admission.charge(event.agent, RECORD_UNITS)
            case Replied():
                self._costs.refund(event.sender, event.client)
            case Rejected(agent=agent, client=client):
                own = client if client is not None and self._is_claimed(agent, client) else None
                self._costs.refuse(agent, own, self._relays.relays_of(agent))

    def _is_claimed(self, agent: str, client: ClientId) -> bool:
        known = self._machine.agents.get(agent)
        if known is None:
            self._claims.pop(agent, None)
            return False
        if agent not in self._claims or self._claims[agent][0] is not known:
            self._claims[agent] = known, frozenset(known.clients)
        return client in self._claims[agent][1]
