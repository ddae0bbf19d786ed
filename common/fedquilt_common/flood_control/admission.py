"""Admits the messages of agents, or drops them where they arrive: of agents that flood, and of QoS 0.

A flood must cost the other agents next to nothing. So the receiver, which is the coordinator or the relay of a site,
cancels its subscriptions to an agent that floods, and drops what is still under way in the network thread. This never
changes what counts: a reply that was dropped is offered again when its agent asks for the receipt.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fedquilt_common.flood_control.flood_guard import (
    RECORD_UNITS,
    RETAINED_NAME_UNITS,
    STRANGERS,
    FloodGuard,
    Mute,
    chunk_units,
    control_units,
)
from fedquilt_common.flood_control.subscriptions import Subscriptions
from fedquilt_common.wire.number_ranges import count_in_ranges
from fedquilt_common.wire.topics import AGENT_KINDS, NAME, TopicKind, Topics
from fedquilt_common.wire.transport import Incoming, MqttMessage, Transport

log = logging.getLogger(__name__)

UNKNOWN: Final = "?"
"""Stands for the agent in the journal where a topic does not name one."""
_REVOKED: Final = "It is revoked, but the broker accepts it: give the broker its new revocation list and ACL"
LOOK_SECONDS: Final = 10.0
"""Pause between two looks for new agents while an agent is muted."""


class Admission:
    """Which messages reach the receiver.

    Args:
        transport: its subscriptions are narrowed while an agent is muted.
        guard: decides which agents flood.
        kinds: what the receiver reads of each agent.
        own: the receiver's name as an agent, which is never muted; empty if it is not an agent.
        is_revoked: whether a board is revoked.

    Attributes:
        guard: as above.
    """

    def __init__(
        self,
        transport: Transport,
        topics: Topics,
        guard: FloodGuard,
        kinds: Sequence[TopicKind] = AGENT_KINDS,
        own: str = "",
        is_revoked: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._topics = topics
        self._subscriptions = Subscriptions(transport, topics, kinds)
        self.guard = guard
        self._own = own
        self._is_revoked = is_revoked
        transport.ignore(self._is_muted)
        self._mutes: queue.SimpleQueue[Mute] = queue.SimpleQueue()
        self._look_at = 0.0

    def turns_away(self, incoming: Incoming) -> bool:
        """Whether to drop what the transport delivers, in its thread; a message that is dropped is acknowledged."""
        if not isinstance(incoming, MqttMessage) or self.admits(incoming):
            return False
        incoming.ack()
        return True

    def admits(self, message: MqttMessage) -> bool:
        """Whether to pass on a message that arrived; called in the network thread."""
        origin = self._origin(message.topic)
        if origin is None:
            return message.qos > 0
        if self._drops(origin, message):
            return False
        agent, kind = origin
        self.charge(agent, _units(kind, message.payload), RETAINED_NAME_UNITS if message.retained else RECORD_UNITS)
        return message.qos > 0

    def ignores(self, message: MqttMessage) -> bool:
        """Whether a message's agent is muted. The retained presence of a muted agent is still admitted."""
        if not self.guard.muted:
            return False
        origin = self._origin(message.topic)
        return origin is not None and self._drops(origin, message)

    def _drops(self, origin: tuple[str, str], message: MqttMessage) -> bool:
        agent, kind = origin
        looked_up = message.retained and kind == "presence" and agent in self.guard.muted
        return self.guard.is_muted(agent) and not looked_up

    def _is_muted(self, topic: str) -> bool:
        """Whether to drop the packets of a topic before they are parsed: its agent is muted, and is not revoked."""
        if not self.guard.muted:
            return False
        origin = self._origin(topic)
        return origin is not None and self.guard.is_muted(origin[0]) and not self._is_revoked(origin[0])

    def _origin(self, topic: str) -> tuple[str, str] | None:
        """Return the holder of the bucket that a message fills, and the kind of the message; None if it costs nothing.

        Only what coordinators publish costs nothing, and what is on the receiver's own topics.
        """
        origin = self._topics.origin(topic)
        return None if origin is None or origin[0] == self._own else (_holder(origin[0]), origin[1])

    def sender(self, topic: str) -> str:
        """Return the agent that published on a topic; ``UNKNOWN`` if the topic does not name one."""
        origin = self._origin(topic)
        return (origin and origin[0]) or UNKNOWN

    def charge(self, agent: str, units: float, name_units: float = RECORD_UNITS) -> None:
        """Fill an agent's bucket; mute the agent if it overflows.

        Args:
            name_units: what a new name costs all new names.
        """
        if mute := self.guard.charge(_holder(agent), units, time.monotonic(), name_units):
            self._subscriptions.mute(mute.agent)
            self._mutes.put(mute)

    def add(self, agent: str) -> None:
        """Receive what this agent publishes even while another one is muted."""
        self._subscriptions.add([agent])

    def remove(self, agent: str) -> None:
        """Forget an agent that has left."""
        self._subscriptions.remove(agent)

    def start(self, agents: Iterable[str]) -> None:
        """Take over the agents of the journal, and drop what an earlier process left in the session."""
        names = list(agents)
        self.guard.open(names, time.monotonic())
        self._subscriptions.inherit(names)

    def connect(self, others: Iterable[str]) -> None:
        """Subscribe after a connection: to agents, and to what these filters name besides."""
        self._subscriptions.renew(others)

    def describe(self, mute: Mute) -> str:
        """Return the reason that people see for a mute."""
        if mute.agent == STRANGERS:
            return f"too many new agents: new ones are ignored for {mute.seconds:g} s"
        advice = _REVOKED if self._is_revoked(mute.agent) else "Stop the agent, or update it"
        what = f"agent {mute.agent} floods the broker with messages that cannot count"
        return f"{what}: it is ignored for {mute.seconds:g} s. {advice}"

    def advance(self) -> Iterator[Mute]:
        """End the mutes whose time is over, look for new agents, and yield the mutes that began."""
        while not self._mutes.empty():
            mute = self._mutes.get()
            log.warning("%s", self.describe(mute))
            yield mute
        if self.guard.muted:
            self._advance_mutes(time.monotonic())

    def _advance_mutes(self, now: float) -> None:
        if ended := self.guard.end_mutes(now):
            self._subscriptions.unmute(ended)
        muted = self.guard.muted
        if muted and STRANGERS not in muted and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._subscriptions.look_around()


def _holder(agent: str) -> str:
    """Return the holder of an agent's bucket: ``STRANGERS`` for what cannot be a name."""
    return agent if NAME.fullmatch(agent) else STRANGERS


def _units(kind: str, payload: bytes) -> float:
    """Return what a message costs, even one that parsing then finds to be invalid."""
    if kind == "replies":
        return chunk_units(len(payload))
    return control_units(len(payload), count_in_ranges(payload) if kind == "presence" else 0)
