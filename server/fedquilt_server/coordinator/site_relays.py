"""Which agents may send the replies of clients that others host: the relay of a site, for the boards behind it.

Only the presences count, so an agent that is not connected sends for nobody. The journal names the board that hosts a
client, and the relay as the sender of its reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedquilt_common.flood_control.limits import MOST_AGENTS
from fedquilt_common.types import Assignments, ClientId
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.round.machine import Machine


class SiteRelays:
    """The relays of the sites, and the boards behind each site.

    Args:
        machine: holds the connected agents and the host of each client.
        read_assignments: returns those of the inventory, which may name the relays.
    """

    def __init__(self, machine: Machine, read_assignments: Callable[[], Assignments]) -> None:
        self._machine = machine
        self._read_assignments = read_assignments
        self._site_of: dict[str, str] = {}
        self._relays: dict[str, str] = {}

    def is_named(self, relay: str, site: str | None) -> bool:
        """Whether an agent may be the relay of a site: without an inventory, any agent may."""
        named = self._read_assignments().relays
        return named is None or (site is not None and named.get(relay) == site)

    @property
    def missing(self) -> dict[str, str]:
        """The relays that the inventory names and that are not connected, though boards of their sites are."""
        here = {site for agent, site in self._site_of.items() if agent in self._machine.agents}
        named = self._read_assignments().relays or {}
        return {relay: site for relay, site in named.items() if site in here and relay not in self._machine.agents}

    def take(self, presence: AgentPresence) -> None:
        """Note the site of an agent, and whether it is the site's relay."""
        for sites in (self._site_of, self._relays):
            sites.pop(presence.agent, None)
        if len(self._site_of) + len(self._relays) >= MOST_AGENTS:  # of earlier agents
            self._site_of = {agent: site for agent, site in self._site_of.items() if agent in self._machine.agents}
            self._relays = {agent: site for agent, site in self._relays.items() if agent in self._machine.agents}
        if presence.online and presence.site is not None:
            (self._relays if presence.site_relay else self._site_of)[presence.agent] = presence.site

    def site_of(self, relay: str) -> str | None:
        """Return the site whose relay an agent is; None if it is not one or not connected, or the inventory differs."""
        site = self._relays.get(relay)
        if site is None or relay not in self._machine.agents:
            return None
        return site if self.is_named(relay, site) else None

    def may_send(self, agent: str, client: ClientId) -> bool:
        """Whether an agent may send the reply of a client: it hosts the client, or is the relay of the host's site."""
        return client in self.select(agent, [client])

    def select(self, agent: str, clients: Iterable[ClientId]) -> set[ClientId]:
        """Return the clients, out of these, whose replies an agent may send. It reads the inventory once."""
        site, hosts = self.site_of(agent), self._machine.host_of
        hosted = ((client, hosts.get(client, "")) for client in clients)
        return {c for c, host in hosted if host == agent or (site is not None and self._site_of.get(host) == site)}

    def relays(self, agent: str, client: ClientId) -> bool:
        """Whether an agent is the relay of the site of the board that hosts a client."""
        site, host = self.site_of(agent), self._machine.host_of.get(client)
        return site is not None and host is not None and self._site_of.get(host) == site

    def count_clients(self, agent: str) -> int:
        """Return for how many clients an agent may send replies."""
        hosts = self._machine.host_of
        if (site := self.site_of(agent)) is None:
            known = self._machine.agents.get(agent)
            return sum(hosts.get(client) == agent for client in known.clients) if known else 0
        return sum(self._site_of.get(host) == site for host in hosts.values())

    def host_of(self, agent: str, client: ClientId) -> str:
        """Return the board that a message about a client concerns: the host if its relay sent it, else the sender."""
        return self._machine.host_of[client] if self.relays(agent, client) else agent

    def relays_of(self, host: str) -> list[str]:
        """Return the connected relays of a board's site."""
        site = self._site_of.get(host)
        return [relay for relay in self._relays if site is not None and self.site_of(relay) == site]

    def refusal(self, agent: str, client: ClientId | None = None) -> str:
        """Return why the replies of a client, or of the several of a sum, cannot count that an agent sends."""
        site, host = self.site_of(agent), None if client is None else self._machine.host_of.get(client)
        which = "them" if client is None else f"client {client}"
        if site is not None:
            return f"no board behind the site {site} hosts {which}"
        return f"agent {agent} does not host {which}{f', but agent {host} does' if host else ''}"
