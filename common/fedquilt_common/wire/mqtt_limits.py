"""How much a connection to a broker holds, and how long the broker keeps what it gets."""

from __future__ import annotations

from typing import Final

from fedquilt_common.wire.transport import SMALLEST_PAYLOAD

ACCEPT_SECONDS: Final = 15
"""How long a broker may take to accept a new connection's client, or to refuse it."""
QUEUED_MESSAGES: Final = 256
"""Messages that may be sent and not yet acknowledged before ``publish`` waits."""
HELD_BYTES: Final = 4 * 1024 * 1024
"""Received bytes that may be unprocessed before the client stops reading."""
HELD_MESSAGES: Final = 64
"""Received messages that may be unprocessed before the client stops reading."""
LARGE_PAYLOAD: Final = 64 * 1024
"""Bytes of a payload that is not copied: it is delivered as it was read, in a bytearray."""
RECEIVE_MAXIMUM: Final = HELD_MESSAGES
"""Messages that the broker may send before the client acknowledges one: replies become durable together."""
LARGEST_PACKET: Final = 16 * 1024 * 1024
"""Largest packet that the broker may send, in bytes."""
PACKET_OVERHEAD: Final = 1024
"""Bytes of a packet reserved for topic, properties and framing."""
SMALLEST_PACKET: Final = SMALLEST_PAYLOAD + PACKET_OVERHEAD
"""Smallest Maximum Packet Size of a broker that suffices for the control messages, in bytes."""
MESSAGE_EXPIRY: Final = 600
"""Seconds for which the broker keeps a message that is not retained; the protocol sends what still matters again."""
RETAINED_EXPIRY: Final = 10 * 365 * 86_400
"""The same for a retained message: for ever, in effect. What is left shows how long the broker has kept it."""
