"""Admits the messages of agents, or drops them where they arrive: of agents that flood, and of QoS 0.

A flood must cost the other agents next to nothing. So the coordinator cancels its subscriptions to an agent that
floods, and drops what is still under way in the network thread. This never changes what counts: a reply that was
dropped is offered again when its agent asks for the receipt.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Final

from fedquilt_common.wire.topics import NAME, Topics
from fedquilt_common.wire.transport import MqttMessage, Transport
from fedquilt_server.coordinator.flood_guard import STRANGERS, FloodGuard, Mute, chunk_units, control_units
from fedquilt_server.coordinator.subscriptions import Subscriptions

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""Pause between two looks for new agents while an agent is muted."""


class Admission:
    """Which messages reach the coordinator.

    Args:
        transport: its subscriptions are narrowed while an agent is muted.
        guard: decides which agents flood.
    """

    def __init__(self, transport: Transport, topics: Topics, guard: FloodGuard) -> None:
        self._topics = topics
        self._subscriptions = Subscriptions(transport, topics)
        self._guard = guard
        transport.ignore(self._is_muted)
        self._mutes: queue.SimpleQueue[Mute] = queue.SimpleQueue()
        self._look_at = 0.0

    def admits(self, message: MqttMessage) -> bool:
        """Whether to pass on a message that arrived; called in the network thread."""
        if self.ignores(message):
            return False
        agent, kind = self._origin(message.topic)
        size = len(message.payload)
        self.charge(agent, chunk_units(size) if kind == "replies" else control_units(size))
        return message.qos > 0

    def ignores(self, message: MqttMessage) -> bool:
        """Whether a message's agent is muted; what the broker sends of its presence at a look around still counts."""
        agent, kind = self._origin(message.topic)
        looked_up = message.retained and kind == "presence" and agent in self._guard.muted
        return self._guard.is_muted(agent) and not looked_up

    def _origin(self, topic: str) -> tuple[str, str]:
        agent, kind = self._topics.origin(topic)
        return agent if NAME.fullmatch(agent) else STRANGERS, kind

    def charge(self, agent: str, units: float) -> None:
        """Fill an agent's bucket; mute the agent if it overflows."""
        if mute := self._guard.charge(agent, units, time.monotonic()):
            self._subscriptions.mute(mute.agent)
            self._mutes.put(mute)

    def _is_muted(self, topic: str) -> bool:
        return self._guard.is_muted(self._origin(topic)[0])

    def refund(self, agent: str, units: float) -> None:
        """Take units of messages that were of use out of an agent's bucket."""
        self._guard.refund(agent, units)

    def expect(self, reply_units: float) -> None:
        """Make room for replies whose largest one has ``reply_units``."""
        self._guard.expect(reply_units)

    def know(self, agents: Iterable[str]) -> None:
        """Receive what these agents publish also while another one is muted."""
        self._subscriptions.know(agents)

    def start(self, agents: Iterable[str]) -> None:
        """Know the agents of the journal, and drop what an earlier process left in the session."""
        self._subscriptions.inherit(agents)

    def connect(self) -> None:
        """Subscribe after a connection."""
        self._subscriptions.renew()

    def advance(self) -> Iterator[Mute]:
        """End the mutes whose time is over, look for new agents, and yield the mutes that began."""
        while not self._mutes.empty():
            mute = self._mutes.get()
            log.warning("%s", describe(mute))
            yield mute
        if self._guard.muted:
            self._advance_mutes(time.monotonic())

    def _advance_mutes(self, now: float) -> None:
        if ended := self._guard.end_mutes(now):
            self._subscriptions.unmute(ended)
        muted = self._guard.muted
        if muted and STRANGERS not in muted and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._subscriptions.look_around()


def describe(mute: Mute) -> str:
    """Return the reason that the page shows for a mute."""
    if mute.agent == STRANGERS:
        return f"too many new agents: new ones are ignored for {mute.seconds:g} s"
    return (
        f"agent {mute.agent} floods the coordinator with messages that cannot count: it is ignored for "
        f"{mute.seconds:g} s. Stop the agent, or update it"
    )
