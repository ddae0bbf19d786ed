"""Subscriptions to what agents publish, except the messages of muted agents.

MQTT cannot exclude one topic from a wildcard. So while an agent is muted, the receiver subscribes to the topics of
each known agent instead, and now and then it fetches what the broker retains of all presences, to find new agents.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from fedquilt_common.wire.topics import AGENT_KINDS, TopicKind, Topics
from fedquilt_common.wire.transport import Transport

_ABOUT_AGENTS: Final = ("presence", "telemetry")
"""What names agents; it arrives before their replies."""


class Subscriptions:
    """What the receiver is subscribed to. The network thread mutes, the receiver's thread does the rest.

    Args:
        kinds: what it reads of each agent.
    """

    def __init__(self, transport: Transport, topics: Topics, kinds: Sequence[TopicKind] = AGENT_KINDS) -> None:
        self._transport = transport
        self._topics = topics
        self._kinds = kinds
        self._lock = threading.RLock()  # a broker in memory delivers while it subscribes
        self._known: set[str] = set()
        self._muted: set[str] = set()

    def renew(self, others: Iterable[str] = ()) -> None:
        """Subscribe again after a connection, and cancel what the session still has of earlier subscriptions.

        Args:
            others: filters that no mute concerns. They come after what names the agents, and before their replies.
        """
        about = [kind for kind in self._kinds if kind in _ABOUT_AGENTS]
        content = [kind for kind in self._kinds if kind not in _ABOUT_AGENTS]
        with self._lock:
            wide, named = self._of("+"), self._of(self._known - self._muted)
            agents = self._known - self._muted if self._muted else {"+"}
            self._transport.subscribe([*self._of(agents, about), *others, *self._of(agents, content)])
            self._transport.unsubscribe([*wide, *self._of(self._muted)] if self._muted else named)

    def inherit(self, agents: Iterable[str]) -> None:
        """Cancel what an earlier process, which worked with these agents, may have subscribed to.

        If the session has brought a flood already, the receiver subscribes to these agents by their names instead.
        """
        with self._lock:
            self.add(agents)
            if not self._muted:
                self._transport.unsubscribe(self._of(self._known))

    def add(self, agents: Iterable[str]) -> None:
        """Subscribe to agents by their names while another one is muted."""
        with self._lock:
            new = set(agents) - self._known
            self._known |= new
            if self._muted:
                self._transport.subscribe(self._of(new - self._muted))

    def remove(self, agent: str) -> None:
        """Forget an agent that has left; a look around finds it when it comes back."""
        with self._lock:
            if agent in self._known:
                self._known.discard(agent)
                if self._muted:
                    self._transport.unsubscribe(self._of([agent]))

    def mute(self, agent: str) -> None:
        """Stop receiving what ``agent`` publishes, and the topics of unknown agents."""
        with self._lock:
            first = not self._muted
            self._muted.add(agent)
            if first:
                self._transport.subscribe(self._of(self._known - self._muted))
                self._transport.unsubscribe(self._of("+"))
            self._transport.unsubscribe(self._of({agent} & self._known))

    def unmute(self, agents: Iterable[str]) -> None:
        """Receive what ``agents`` publish again."""
        with self._lock:
            ended = set(agents) & self._muted
            self._muted -= ended
            if not self._muted:
                self._transport.subscribe(self._of("+"))
                self._transport.unsubscribe(self._of(self._known))
            else:
                self._transport.subscribe(self._of(ended & self._known))

    def look_around(self) -> None:
        """Fetch what the broker retains of all presences."""
        presences = [self._topics.presence("+")]
        self._transport.subscribe(presences)
        self._transport.unsubscribe(presences)

    def _of(self, agents: Iterable[str], kinds: Sequence[TopicKind] | None = None) -> list[str]:
        chosen = self._kinds if kinds is None else kinds
        return [name for agent in sorted(agents) for name in self._topics.filters(*chosen, agent=agent)]
