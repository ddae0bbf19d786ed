"""What coordinator and agent need of MQTT, as one small protocol and its records.

Nothing above this file trusts the broker to keep anything: a publication that is dropped because the broker is away
is repaired by the state that both sides send again after ``Connected``. What a transport does promise is bounded
memory (``publish`` waits while too much is under way) and that a message is acknowledged only by its receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class MqttMessage:
    """One publication. ``header`` is its Correlation Data; ``ack`` must be called once it is dealt with."""

    topic: str
    payload: bytes
    header: bytes
    retained: bool
    ack: Callable[[], None]


@dataclass(frozen=True)
class Connected:
    """The broker took us; everything it should retain must be published again, every filter subscribed again."""

    session_present: bool


@dataclass(frozen=True)
class Disconnected:
    """The connection is gone or could not be made; the transport keeps trying. ``advice``: what to look at."""

    reason: str
    refused: bool = False
    advice: str = "Check that the broker runs, its address and port, and the firewall"


Incoming = MqttMessage | Connected | Disconnected
Deliver = Callable[[Incoming], None]


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when this client is gone for ``delay`` seconds."""

    topic: str
    payload: bytes
    delay: int = 0


class Transport(Protocol):
    """What coordinator and agent need of MQTT. Everything that comes in goes to ``deliver``, in order."""

    def connect(self) -> None:
        """Start; ``Connected`` or ``Disconnected`` follows."""

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        """Send at QoS 1. Waits while too much is under way; False when there is no connection (nothing is kept)."""

    def drain(self, timeout: float) -> bool:
        """Wait until the broker has acknowledged everything; False when it has not in ``timeout`` seconds."""

    def subscribe(self, filters: Iterable[str]) -> None: ...
    def unsubscribe(self, filters: Iterable[str]) -> None: ...
    def close(self, last: tuple[str, bytes] | None = None) -> None:
        """Leave; ``last`` is a topic and payload to retain in place of the will."""

    @property
    def max_payload(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...


MakeTransport = Callable[[Deliver, Will], Transport]
"""Makes a transport from a callback and a last will."""
