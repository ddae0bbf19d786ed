"""The transport over MQTT 5; only this module and `mqtt_client` import paho."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.connection_errors import (
    NO_FAREWELL,
    explain_answer,
    explain_crash,
    explain_failed_attempt,
    explain_limits,
    explain_loss,
    explain_other_protocol,
)
from fedquilt_common.wire.mqtt_client import CountingClient
from fedquilt_common.wire.mqtt_limits import (
    HELD_BYTES,
    HELD_MESSAGES,
    LARGEST_PACKET,
    MESSAGE_EXPIRY,
    PACKET_OVERHEAD,
    QUEUED_MESSAGES,
    RECEIVE_MAXIMUM,
    RETAINED_EXPIRY,
)
from fedquilt_common.wire.other_protocol import uses_other_protocol
from fedquilt_common.wire.publish_packets import PackedProperties, PublishHead
from fedquilt_common.wire.read_ahead import Ignores
from fedquilt_common.wire.tls import TlsContext
from fedquilt_common.wire.transport import (
    Connected,
    Deliver,
    Disconnected,
    MqttMessage,
    PublicationRefused,
    Will,
    divide_filters,
)
from fedquilt_common.wire.window import QUEUED_BYTES, Intake, Window

log = logging.getLogger(__name__)

_KEEPALIVE: Final = 30
BRIEF_SECONDS: Final = 10.0
"""A connection that ends sooner after the broker has accepted it is brief."""
MANY_BRIEF: Final = 3
"""This many brief connections in a row have another cause than a restart of the broker."""
MOST_DOUBLINGS: Final = 4
"""How often brief connections double the wait before the next attempt."""
_FAREWELL: Final = 5.0
"""Seconds that ``close`` waits for the broker to acknowledge what is sent."""
MOST_REPORTED: Final = 64
"""Topics whose refusal the log names in a connection."""


class MqttTransport:
    """``Transport`` over a broker with MQTT 5, with paho's network thread.

    Args:
        address: where the broker is and how to authenticate.
        client_id: a stable name, so that the broker resumes the session; see ``client_id.py``.
        deliver: called from the network thread for everything that arrives.
        will: published by the broker if the client disappears without disconnecting.
        session_expiry: seconds for which the broker keeps the session.
        should_stop: whether ``publish`` gives up instead of waiting, because the process stops.

    Attributes:
        refusals: number of messages that the broker refused.

    Raises:
        ExperimentError: the address's TLS files cannot be used.
    """

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        deliver: Deliver,
        *,
        will: Will | None = None,
        session_expiry: int = 3600,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address = address
        self._deliver = deliver
        self._window = Window(QUEUED_BYTES, QUEUED_MESSAGES, should_stop)
        self._intake = Intake(HELD_BYTES, HELD_MESSAGES)
        self._max_packet = LARGEST_PACKET
        self._session_expiry = session_expiry
        self._session = 0
        self._explained = False
        self._accepted_at = 0.0
        self._brief = 0  # connections in a row that ended soon after the broker had accepted them
        self.refusals = 0
        self._refused: set[str] = set()
        self._client = self._make_client(client_id)
        if will is not None:
            properties = _properties(PacketTypes.WILLMESSAGE)
            properties.WillDelayInterval = will.delay
            self._client.will_set(will.topic, will.payload, qos=1, retain=True, properties=properties)

    def _make_client(self, client_id: str) -> CountingClient:
        client = CountingClient(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, manual_ack=True)
        client.is_full = self._is_full
        client.on_crash = self._on_crash
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publication = self._on_publication
        client.on_publish = self._on_publish
        client.on_acknowledgement = self._window.acknowledge
        client.on_subscribe = self._on_subscribe
        if self._address.username:
            client.username_pw_set(self._address.username, self._address.password or None)
        if self._address.tls:
            client.tls = TlsContext(self._address)
            client.tls_set_context(client.tls.context)
        return client

    def _is_full(self) -> bool:
        """Whether to stop reading: never while a thread waits for acknowledgements, which would not be read either."""
        return self._intake.is_full and not self._window.waiting

    def connect(self) -> None:
        properties = _properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self._session_expiry
        properties.ReceiveMaximum = RECEIVE_MAXIMUM
        properties.MaximumPacketSize = LARGEST_PACKET
        self._back_off()
        self._client.connect_async(
            self._address.host, self._address.port, _KEEPALIVE, clean_start=False, properties=properties
        )
        self._client.loop_start()

    def _back_off(self) -> None:
        # paho doubles the delay at each failure; a random first step keeps a fleet from reconnecting all at once
        step = random.uniform(0.2, 0.6)  # noqa: S311 - no secret
        first = step * 2 ** min(self._brief, MOST_DOUBLINGS)
        self._client.reconnect_delay_set(first, 30 * step)  # type: ignore[arg-type]  # fractions work

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        if len(payload) > self.max_payload:
            raise BrokerUnreachableError(
                f"the broker {self._address} accepts packets of at most {self._max_packet} bytes, but a message on "
                f"{topic} has {len(payload)}: raise the broker's max_packet_size"
            )
        size = len(payload) + len(header) + len(topic)
        if not self._window.reserve(size):
            return False
        properties: Any = PackedProperties(RETAINED_EXPIRY if retain else MESSAGE_EXPIRY, header)
        info = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        self._window.register(info.mid, size)
        return True

    def drain(self, timeout: float) -> bool:
        return self._window.drain(timeout)

    def subscribe(self, filters: Iterable[str]) -> None:
        for names in divide_filters(filters):
            self._client.subscribe([(name, SubscribeOptions(qos=1)) for name in names])

    def unsubscribe(self, filters: Iterable[str]) -> None:
        for names in divide_filters(filters):
            self._client.unsubscribe(names)

    def ignore(self, ignores: Ignores) -> None:
        self._client.ignores = ignores

    def close(self, last: tuple[str, bytes] | None = None, *, end_session: bool = False) -> None:
        reachable = self.drain(_FAREWELL)
        if reachable and last is not None and self.publish(*last, retain=True):
            reachable = self.drain(_FAREWELL)
        self._window.set_open(False)
        properties = _properties(PacketTypes.DISCONNECT)
        if end_session:
            properties.SessionExpiryInterval = 0
        self._client.ended = True
        self._client.disconnect(properties=properties)
        if not reachable:
            self._cut_connection()
        self._client.end_loop()

    def _cut_connection(self) -> None:
        # with a frozen broker or a dead link, a normal disconnect would wait until the keepalive fails
        connection: Any = self._client.socket()  # paho's type has no shutdown
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def max_payload(self) -> int:
        """Bytes of payload that fit the broker's largest packet."""
        return self._max_packet - PACKET_OVERHEAD

    @property
    def bytes_sent(self) -> int:
        return self._client.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._client.bytes_received

    def _on_connect(self, _client: Client, _data: Any, flags: ConnectFlags, code: ReasonCode, properties: Any) -> None:
        if code.is_failure:
            self._explained = True  # the end of the connection is no further news
            self._deliver(explain_answer(self._address, code.value, str(code)))
            return
        largest = int(getattr(properties, "MaximumPacketSize", LARGEST_PACKET))
        # a property that is absent means that it is supported: MQTT 5, sections 3.2.2.3.4 and 3.2.2.3.5
        qos, retains = int(getattr(properties, "MaximumQoS", 2)), bool(getattr(properties, "RetainAvailable", 1))
        if problem := explain_limits(self._address, largest, qos, retains=retains):
            self._deliver(problem)
            return
        self._max_packet = min(largest, LARGEST_PACKET)
        self._accepted_at = time.monotonic()
        self._session += not flags.session_present
        self._refused.clear()
        self._window.set_open(True)
        self._deliver(Connected(flags.session_present))

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this method while it handles the error, which may be a certificate's
        if self._client.ended:
            return
        if self._address.tls and uses_other_protocol(self._address, error):
            self._deliver(explain_other_protocol(self._address))
        else:
            self._deliver(explain_failed_attempt(self._address, error))

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        if was_accepted := self._window.open:
            self._brief = self._brief + 1 if time.monotonic() - self._accepted_at < BRIEF_SECONDS else 0
            self._back_off()
        self._window.set_open(False)
        if not (self._explained or self._client.ended):
            self._deliver(self._explain_loss(code, was_accepted))
        self._explained = False

    def _explain_loss(self, code: ReasonCode, was_accepted: bool) -> Disconnected:
        unexplained = not (was_accepted or self._address.tls) and code.value == NO_FAREWELL
        if unexplained and uses_other_protocol(self._address):
            return explain_other_protocol(self._address)
        error = self._client.tls_error
        return explain_loss(
            self._address, code.value, str(code), was_accepted=was_accepted, tls_error=error,
            repeated=self._brief >= MANY_BRIEF,
        )  # fmt: skip

    def _on_crash(self, error: Exception) -> None:
        """Cut the connection, so that the broker publishes the will, and report the error."""
        log.error("unforeseen error in the network thread", exc_info=error)
        self._window.set_open(False)
        self._cut_connection()
        self._deliver(explain_crash(self._address, error))

    def _on_publish(self, _client: Client, _data: Any, mid: int, code: ReasonCode, _properties: Any) -> None:
        if code.is_failure:
            self.refusals += 1
            topic = self._client.topic_of(mid)
            self._report_refusal(topic, code)
            self._deliver(PublicationRefused(topic, str(code), self._address))
        self._window.acknowledge(mid)

    def _report_refusal(self, topic: str, code: ReasonCode) -> None:
        """Log the first refusal of a topic since the connection: a broker that refuses one message refuses the next."""
        if topic not in self._refused and len(self._refused) < MOST_REPORTED:
            self._refused.add(topic)
            log.warning("the broker refused a message on %s: %s. Check the broker's ACL", topic, code)

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any) -> None:
        for code in codes:
            if code.is_failure:
                log.warning("the broker refused a subscription: %s. Check the broker's ACL", code)

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        header = getattr(message.properties, "CorrelationData", b"")
        expires_in = getattr(message.properties, "MessageExpiryInterval", None)
        head = PublishHead(message.topic, message.qos, message.retain, message.mid, header, expires_in, 0)
        self._on_publication(head, bytes(message.payload))

    def _on_publication(self, head: PublishHead, payload: bytes) -> None:
        session, mid, qos = self._session, head.mid, head.qos
        held = self._intake.hold(len(payload))

        def acknowledge() -> None:
            held.end()
            if qos and session == self._session:  # a new session reuses the numbers
                self._client.ack(mid, qos)

        message = head.topic, payload, head.header, head.retained, acknowledge, qos, head.expires_in, held.free
        self._deliver(MqttMessage(*message))


def _properties(packet: int) -> Any:
    return Properties(packet)  # type: ignore[no-untyped-call]  # paho does not type it
