"""The transport over MQTT 5; the only module that imports paho."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, cast

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTMessageInfo, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MessageType, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.connection_errors import (
    explain_crash,
    explain_failed_attempt,
    explain_loss,
    explain_refusal,
    explain_small_packets,
)
from fedquilt_common.wire.discovery import open_connection
from fedquilt_common.wire.mqtt_limits import (
    HELD_BYTES,
    HELD_MESSAGES,
    LARGE_PAYLOAD,
    LARGEST_PACKET,
    MESSAGE_EXPIRY,
    PACKET_OVERHEAD,
    QUEUED_MESSAGES,
    RECEIVE_MAXIMUM,
    RETAINED_EXPIRY,
    SMALLEST_PACKET,
)
from fedquilt_common.wire.publish_packets import PackedProperties, PublishHead, is_success, parse_head
from fedquilt_common.wire.read_ahead import Ignores, PacketLengthError, ReadAhead
from fedquilt_common.wire.tls import TlsContext, secure_socket
from fedquilt_common.wire.transport import Connected, Deliver, MqttMessage, PublicationRefused, Will, divide_filters
from fedquilt_common.wire.window import QUEUED_BYTES, Intake, Window

log = logging.getLogger(__name__)

_KEEPALIVE: Final = 30
_BRAKE_SECONDS: Final = 0.001
_PACKETS: Final = 32
"""Packets that are handled before paho writes again and checks the keepalive."""
_FAREWELL: Final = 5.0
"""Seconds that ``close`` waits for the broker to acknowledge what is sent."""


class _CountingClient(Client):
    """paho's client, which counts every byte at the socket and stops reading while the receiver is full.

    While ``is_full()`` is true, nothing is read, and TCP makes the broker wait. The receive maximum is not enough:
    brokers do not always obey it (Mosquitto 2.0.11 continues to send at the first acknowledgement), and QoS 0 has
    none.
    """

    bytes_sent = 0
    bytes_received = 0
    is_full: Callable[[], bool] = staticmethod(lambda: False)
    ignores: Ignores | None = None
    tls: TlsContext | None = None
    tls_error: ssl.SSLError | None = None
    on_crash: Callable[[Exception], None] = staticmethod(lambda _error: None)
    on_publication: Callable[[PublishHead, bytes], None]
    on_acknowledgement: Callable[[int], None]

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> MQTTErrorCode:
        """Run the network thread; whatever it raises is reported, because nobody would notice its end."""
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:
            self.on_crash(error)
            return MQTTErrorCode.MQTT_ERR_UNKNOWN

    def topic_of(self, mid: int) -> str:
        """Return the topic of a publication, until its acknowledgement is handled."""
        return self._out_messages[mid].topic

    def _create_socket(self) -> Any:
        self.tls_error = None
        if self.tls is not None:
            self._ssl_context = self.tls.read_again()
        return ReadAhead(super()._create_socket(), self._count_received)

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        return secure_socket(cast("ssl.SSLContext", self._ssl_context), tcp_sock, self._host, self._connect_timeout)

    def _create_socket_connection(self) -> socket.socket:
        connection = open_connection(self._host, self._port, self._connect_timeout)
        # Else a small packet waits until the broker's system acknowledges the one before, which Linux delays by 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _count_received(self, size: int) -> None:
        self.bytes_received += size
        self._last_bytes_received = time.monotonic()

    def _packet_read(self) -> MQTTErrorCode:
        """Handle the packets that have arrived, several at once if they are small."""
        for _ in range(_PACKETS):
            code = self._read_one() or self._handle_one()
            if code or self._sock is None or not cast("ReadAhead", self._sock).pending():
                break
        return code

    def _read_one(self) -> MQTTErrorCode:
        """Read a packet to where paho's handlers look for it."""
        try:
            first, content = self._next_packet()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return MQTTErrorCode.MQTT_ERR_AGAIN
        except OSError as error:  # paho only reports that the connection is lost
            self.tls_error = error if isinstance(error, ssl.SSLError) else None
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        except PacketLengthError as error:
            log.warning("%s", error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._in_packet.update({"command": first, "packet": content, "remaining_length": len(content)})
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_one(self) -> MQTTErrorCode:
        try:
            return self._packet_handle()
        except MalformedPacket:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        finally:
            self._in_packet["packet"] = bytearray()  # frees the memory

    def _next_packet(self) -> tuple[int, bytearray]:
        connection: Any = self._sock
        if connection is None:  # paho has closed it
            raise ConnectionError
        if self.is_full():
            time.sleep(_BRAKE_SECONDS)  # the socket stays readable: without a pause the loop would spin
            raise BlockingIOError
        if self.ignores is not None and (dropped := connection.drop(self.ignores)):
            self._packet_queue(MessageType.PUBACK, b"".join(b"\x40\x02" + mid for mid in dropped), 0, 0)
        return cast("tuple[int, bytearray]", connection.read_packet())

    def _handle_publish(self) -> MQTTErrorCode:
        """Decode the usual packets here: paho takes many times as long, and copies the payload a dozen times."""
        packet = self._in_packet["packet"]
        head = parse_head(self._in_packet["command"], packet)
        if head is None:
            return super()._handle_publish()
        del packet[: head.payload_at]  # moves nothing
        self.on_publication(head, cast("bytes", packet) if len(packet) >= LARGE_PAYLOAD else bytes(packet))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        """Handle the usual acknowledgement here: paho prepares for each property that it could have."""
        packet = self._in_packet["packet"]
        if cmd != "PUBACK" or not is_success(packet):
            return super()._handle_pubackcomp(cmd)
        mid = int.from_bytes(packet[:2], "big")
        with self._out_message_mutex:
            if self._out_messages.pop(mid, None) is None:
                return MQTTErrorCode.MQTT_ERR_SUCCESS
            self._inflight_messages -= 1
            self.on_acknowledgement(mid)
            return self._update_inflight()

    def _packet_queue(
        self,
        command: int,
        packet: bytes | bytearray,
        mid: int,
        qos: int,
        info: MQTTMessageInfo | None = None,
    ) -> MQTTErrorCode:
        # paho sends a slice of what is left: of a view this is no copy
        return super()._packet_queue(command, cast("bytes", memoryview(packet)), mid, qos, info)

    def _sock_send(self, buf: bytes | bytearray) -> int:
        sent = super()._sock_send(buf)
        self.bytes_sent += sent
        return sent


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
        self.refusals = 0
        self._client = self._make_client(client_id)
        if will is not None:
            properties = _properties(PacketTypes.WILLMESSAGE)
            properties.WillDelayInterval = will.delay
            self._client.will_set(will.topic, will.payload, qos=1, retain=True, properties=properties)

    def _make_client(self, client_id: str) -> _CountingClient:
        client = _CountingClient(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, manual_ack=True)
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
        self._client.reconnect_delay_set(step, 30 * step)  # type: ignore[arg-type]  # fractions work

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
        self._client.disconnect(properties=properties)
        if not reachable:
            self._cut_connection()
        self._client.loop_stop()
        self._client._reset_sockets(sockpair_only=True)  # paho leaves them to the garbage collector

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
            self._deliver(explain_refusal(self._address, str(code)))
            return
        largest = int(getattr(properties, "MaximumPacketSize", LARGEST_PACKET))
        if largest < SMALLEST_PACKET:
            self._deliver(explain_small_packets(self._address, largest))
            return
        self._max_packet = min(largest, LARGEST_PACKET)
        self._session += not flags.session_present
        self._window.set_open(True)
        self._deliver(Connected(flags.session_present))

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this method while it handles the error, which may be a certificate's
        self._deliver(explain_failed_attempt(self._address, error))

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        if was_accepted := self._window.open:
            self._back_off()
        self._window.set_open(False)
        self._deliver(explain_loss(self._address, str(code), was_accepted, self._client.tls_error))

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
            log.warning("the broker refused a message on %s: %s. Check the broker's ACL", topic, code)
            self._deliver(PublicationRefused(topic, str(code), self._address))
        self._window.acknowledge(mid)

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
