"""The transport that coordinator and agent use: one small protocol, and its records.

No other module relies on the broker to keep anything. A publication can be lost while the broker is unreachable; both
sides therefore send their state again after ``Connected``. A transport guarantees two things: bounded memory
(``publish`` blocks while too much is in transit), and that only the receiver acknowledges a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from fedquilt_common.errors import FedquiltError
from fedquilt_common.wire.broker_url import BrokerAddress

SMALLEST_PAYLOAD: Final = 15 * 1024
"""Bytes of payload that every broker accepts; one that accepts less cannot be used."""
FILTERS_PER_PACKET: Final = 64
"""Most filters of one packet; a filter of two names has less than 200 bytes."""


def divide_filters(filters: Iterable[str]) -> Iterator[list[str]]:
    """Divide topic filters among packets, each of which is smaller than ``SMALLEST_PAYLOAD``.

    Args:
        filters: any number of them.

    Yields:
        The filters of a packet.
    """
    left = list(filters)
    while left:
        yield left[:FILTERS_PER_PACKET]
        del left[:FILTERS_PER_PACKET]


def _nothing() -> None:
    """Do nothing: whoever made the message does not count what it holds."""


@dataclass(frozen=True)
class MqttMessage:
    """A publication that arrived.

    Attributes:
        topic: the full topic name.
        payload: the content; empty where a retained message was cleared.
        header: the Correlation Data of MQTT 5; empty if there is none.
        retained: whether the broker had stored the message before the subscription.
        ack: acknowledges the message. Call it once, from any thread, when the message is processed.
        qos: the quality of service with which it arrived, 0 or 1.
        expires_in: what is left of its Message Expiry Interval, in seconds; None if it has none.
        free: makes room for others to arrive before ``ack``. Call it once the payload is no longer needed.
    """

    topic: str
    payload: bytes
    header: bytes
    retained: bool
    ack: Callable[[], None]
    qos: int = 1
    expires_in: int | None = None
    free: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Connected:
    """The broker accepted the connection. Publish retained messages again, and subscribe again.

    Attributes:
        session_present: whether the broker kept this client's session, and with it messages that wait for delivery.
    """

    session_present: bool


@dataclass(frozen=True)
class Disconnected:
    """The connection was lost or could not be made; the transport keeps trying.

    Attributes:
        reason: what happened, with the broker's address.
        refused: whether another attempt ends the same way until somebody corrects something: the broker refuses this
            client, or this client the broker.
        advice: what a person can check; a sentence without a full stop.
    """

    reason: str
    refused: bool = False
    advice: str = "Check that the broker runs, its address and port, and the firewall"


@dataclass(frozen=True)
class PublicationRefused:
    """The broker refused a publication, which the transport has logged and does not repeat.

    Attributes:
        topic: of the publication.
        reason: the broker's, such as ``Not authorized``.
        address: the broker, and how this client authenticates.
    """

    topic: str
    reason: str
    address: BrokerAddress


@dataclass(frozen=True)
class Crashed:
    """The transport ended because of an unforeseen error: nothing arrives any more.

    Attributes:
        error: what the receiver raises.
    """

    error: FedquiltError


Incoming = MqttMessage | Connected | Disconnected | PublicationRefused | Crashed
"""Whatever a transport delivers."""
Deliver = Callable[[Incoming], None]
"""Receives everything that arrives, in order."""


@dataclass(frozen=True)
class Will:
    """The last will: the broker publishes it, retained, when this client disconnects without a farewell.

    Attributes:
        topic: where the broker publishes it.
        payload: what the broker publishes.
        delay: seconds that the broker waits for the client to come back first.
    """

    topic: str
    payload: bytes
    delay: int = 0


class Transport(Protocol):
    """A client of an MQTT 5 broker. It passes everything that arrives to its ``Deliver`` callback, in order."""

    def connect(self) -> None:
        """Start to connect and return; ``Connected`` or ``Disconnected`` follows."""

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        """Publish at QoS 1. Blocks while too much is in transit.

        Args:
            topic: the full topic name.
            payload: at most ``max_payload`` bytes; an empty payload clears a retained message.
            header: Correlation Data, such as a chunk's header.
            retain: whether the broker stores the message for later subscribers.

        Returns:
            Whether the message was handed over. False without a connection, or if the process stops while too much is
            in transit: the message is then dropped.

        Raises:
            BrokerUnreachableError: the payload is larger than the broker accepts.
        """

    def drain(self, timeout: float) -> bool:
        """Wait until the broker has acknowledged every publication.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether everything was acknowledged in time.
        """

    def subscribe(self, filters: Iterable[str]) -> None:
        """Subscribe at QoS 1; the broker then sends what it retains.

        Args:
            filters: topic filters, which may contain ``+`` and ``#``.
        """

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Cancel subscriptions.

        Args:
            filters: topic filters as they were subscribed.
        """

    def ignore(self, ignores: Callable[[str], bool]) -> None:
        """Drop and acknowledge what arrives on some topics as early as possible; retained messages still arrive.

        Some ignored messages may arrive too.

        Args:
            ignores: whether messages on a topic are dropped; called in any thread.
        """

    def close(self, last: tuple[str, bytes] | None = None, *, end_session: bool = False) -> None:
        """Publish a farewell and disconnect; the broker does not publish the will.

        Args:
            last: topic and payload of a retained message, in place of the will; None: no farewell.
            end_session: whether the broker deletes the session at once, because nobody resumes it.
        """

    @property
    def max_payload(self) -> int:
        """The largest payload in bytes that the broker accepts."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that were written to the socket so far."""

    @property
    def bytes_received(self) -> int:
        """Bytes that were read from the socket so far."""


MakeTransport = Callable[[Deliver, Will], Transport]
"""Makes a transport from a callback and a last will."""
