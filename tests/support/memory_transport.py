"""A broker and its clients in one process, for tests without sockets; it passes the same contract tests as MQTT."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from paho.mqtt.client import topic_matches_sub as compare_topic

from fedquilt_common.wire.transport import Connected, Deliver, Disconnected, MqttMessage, Will

topic_matches_sub = functools.lru_cache(maxsize=4096)(compare_topic)


@dataclass
class _Session:
    filters: set[str] = field(default_factory=set)
    unacknowledged: dict[int, tuple[str, bytes, bytes]] = field(default_factory=dict)
    client: MemoryTransport | None = None


@dataclass
class MemoryBroker:
    """Retained messages, persistent sessions and wills. Not thread-safe: everything happens in the caller's thread."""

    retained: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    sessions: dict[str, _Session] = field(default_factory=dict)
    _next: int = 0

    def publish(self, topic: str, payload: bytes, header: bytes, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = payload, header
        elif retain:
            self.retained.pop(topic, None)
        for session in list(self.sessions.values()):
            if any(topic_matches_sub(name, topic) for name in session.filters):
                self._queue(session, topic, payload, header)

    def _queue(self, session: _Session, topic: str, payload: bytes, header: bytes) -> None:
        self._next += 1
        session.unacknowledged[self._next] = topic, payload, header
        self.hand_over(session, self._next, retained=False)

    def hand_over(self, session: _Session, number: int, *, retained: bool) -> None:
        if session.client is None:
            return
        topic, payload, header = session.unacknowledged[number]
        session.client.deliver(
            MqttMessage(topic, payload, header, retained, lambda: session.unacknowledged.pop(number, None) and None)
        )

    def send_retained(self, session: _Session, name: str) -> None:
        for topic, (payload, header) in list(self.retained.items()):
            if topic_matches_sub(name, topic):
                self._next += 1
                session.unacknowledged[self._next] = topic, payload, header
                self.hand_over(session, self._next, retained=True)


class MemoryTransport:
    """``Transport`` over a ``MemoryBroker``."""

    max_payload = 1024 * 1024

    def __init__(self, broker: MemoryBroker, client_id: str, deliver: Deliver, *, will: Will | None = None) -> None:
        self._broker = broker
        self._id = client_id
        self.deliver = deliver
        self._will = will
        self.bytes_sent = self.bytes_received = 0

    @property
    def _session(self) -> _Session | None:
        session = self._broker.sessions.get(self._id)
        return session if session and session.client is self else None

    def connect(self) -> None:
        present = self._id in self._broker.sessions
        session = self._broker.sessions.setdefault(self._id, _Session())
        session.client = self
        self.deliver(Connected(present))
        for number in list(session.unacknowledged):
            self._broker.hand_over(session, number, retained=False)

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        if self._session is None:
            return False
        self.bytes_sent += len(payload) + len(header) + len(topic)
        self._broker.publish(topic, payload, header, retain)
        return True

    def drain(self, timeout: float) -> bool:
        return self._session is not None

    def subscribe(self, filters: Iterable[str]) -> None:
        session = self._session
        for name in filters if session else ():
            assert session is not None
            session.filters.add(name)
            self._broker.send_retained(session, name)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        if self._session is not None:
            self._session.filters.difference_update(filters)

    def ignore(self, ignores: Callable[[str], bool]) -> None:
        """Drop nothing: this is allowed."""

    def close(self, last: tuple[str, bytes] | None = None, *, end_session: bool = False) -> None:
        if last is not None:
            self.publish(*last, retain=True)
        if self._session is not None:
            self._session.client = None
            if end_session:
                del self._broker.sessions[self._id]

    def break_off(self) -> None:
        """Break the connection without a DISCONNECT, so that the broker publishes the will."""
        if self._session is not None:
            self._session.client = None
            if self._will is not None:
                self._broker.publish(self._will.topic, self._will.payload, b"", True)
            self.deliver(Disconnected("connection to memory lost"))
