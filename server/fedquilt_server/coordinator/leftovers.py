"""Clears what the broker still retains of revoked boards: nobody else would, and it fills the broker's memory."""

from __future__ import annotations

from collections.abc import Iterable

from fedquilt_common.wire.topics import AGENT_KINDS, Topics
from fedquilt_common.wire.transport import Incoming, MqttMessage, Transport


class Leftovers:
    """The retained messages on the topics of revoked boards, without their presences, which the claims clear.

    They cost a revoked board nothing of its bucket: the broker accepts no more of them.

    Args:
        transport: the connection to the broker.
        topics: of the federation.
        revoked: the boards that are revoked at the start. A subscription to all agents finds what they left.
    """

    def __init__(self, transport: Transport, topics: Topics, revoked: Iterable[str]) -> None:
        self._transport = transport
        self._topics = topics
        self._revoked = frozenset(revoked)

    def is_revoked(self, agent: str) -> bool:
        """Whether a board is revoked; any thread may ask."""
        return agent in self._revoked

    def follow(self, revoked: frozenset[str]) -> None:
        """Store which boards are revoked now, and fetch what the broker retains of the newly revoked ones."""
        new, self._revoked = revoked - self._revoked, revoked
        for agent in sorted(new):
            filters = self._topics.filters(*AGENT_KINDS, agent=agent)
            self._transport.subscribe(filters)
            self._transport.unsubscribe(filters)

    def has(self, incoming: Incoming) -> bool:
        """Whether a message is a retained one of a revoked board, or the empty one with which ``clear`` removed it."""
        if not isinstance(incoming, MqttMessage) or not (incoming.retained or not incoming.payload):
            return False
        origin = self._topics.origin(incoming.topic)
        return origin is not None and origin[0] in self._revoked and origin[1] != "presence"

    def clear(self, message: MqttMessage) -> None:
        """Let the broker forget a message."""
        if message.payload:
            self._transport.publish(message.topic, b"", retain=True)
