"""paho's client with what the transport needs: counted bytes, a brake, TLS files that are read again, a quick end."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import MessageType, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket

from fedquilt_common.wire.discovery import open_connection
from fedquilt_common.wire.mqtt_limits import ACCEPT_SECONDS, LARGE_PAYLOAD
from fedquilt_common.wire.publish_packets import PublishHead, PublishPacket, is_success, parse_head
from fedquilt_common.wire.read_ahead import Ignores, PacketLengthError, ReadAhead
from fedquilt_common.wire.tls import TlsContext, secure_socket

log = logging.getLogger(__name__)

_BRAKE_SECONDS: Final = 0.001
_END_SECONDS: Final = 1.0
"""How long the network thread may take to end."""
_PACKETS: Final = 32
"""Packets that are handled before paho writes again and checks the keepalive."""


class CountingClient(Client):
    """paho's client, which counts every byte at the socket and stops reading while the receiver is full.

    While ``is_full()`` is true, nothing is read, and TCP makes the broker wait. The receive maximum is not enough:
    brokers do not always obey it (Mosquitto 2.0.11 continues to send at the first acknowledgement), and QoS 0 has
    none.
    """

    bytes_sent = 0
    bytes_received = 0
    ended = False
    is_full: Callable[[], bool] = staticmethod(lambda: False)
    ignores: Ignores | None = None
    tls: TlsContext | None = None
    tls_error: ssl.SSLError | None = None
    on_crash: Callable[[Exception], None] = staticmethod(lambda _error: None)
    on_publication: Callable[[PublishHead, bytes], None]
    on_acknowledgement: Callable[[int], None]

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> MQTTErrorCode:
        """Run the network thread; whatever it raises is reported, because nobody would notice its end.

        After ``ended`` it is not: paho's thread may still use the sockets that ``end_loop`` closes.
        """
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:
            if not self.ended:
                self.on_crash(error)
            return MQTTErrorCode.MQTT_ERR_UNKNOWN

    def end_loop(self) -> None:
        """Wait until the network thread has ended, and close paho's sockets, which it leaves to the garbage collector.

        A thread that resolves a name or tries an address without an answer is left behind: it ends with its attempt.
        """
        self.ended = self._thread_terminate = True
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(_END_SECONDS)
        self._reset_sockets(sockpair_only=True)

    def topic_of(self, mid: int) -> str:
        """Return the topic of a publication, until its acknowledgement is handled."""
        return self._out_messages[mid].topic

    def _create_socket(self) -> Any:
        self.tls_error = None
        if self.tls is not None:
            self._ssl_context = self.tls.read_again()
        connection = super()._create_socket()
        if self.ended:
            connection.close()
            raise ConnectionAbortedError
        return ReadAhead(connection, self._count_received)

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        return secure_socket(cast("ssl.SSLContext", self._ssl_context), tcp_sock, self._host, self._connect_timeout)

    def _create_socket_connection(self) -> socket.socket:
        connection = open_connection(self._host, self._port, self._connect_timeout)
        # Else a small packet waits until the broker's system acknowledges the one before, which Linux delays by 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _check_keepalive(self) -> None:
        """Check the keepalive; until the broker has accepted the client, ``ACCEPT_SECONDS`` count instead."""
        lasting = self._keepalive
        self._keepalive = lasting if self.is_connected() else ACCEPT_SECONDS
        try:
            super()._check_keepalive()
        finally:
            self._keepalive = lasting

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

    def _send_publish(
        self,
        mid: int,
        topic: bytes,
        payload: bytes | bytearray = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        info: MQTTMessageInfo | None = None,
        properties: Any = None,
    ) -> MQTTErrorCode:
        """Queue a publication; paho would copy its payload."""
        if self._sock is None:
            return MQTTErrorCode.MQTT_ERR_NO_CONN
        first = MessageType.PUBLISH | dup << 3 | qos << 1 | retain
        packed = b"\0" if properties is None else properties.pack()
        packet: Any = PublishPacket(first, topic, mid if qos else 0, packed, payload)
        return self._packet_queue(MessageType.PUBLISH, packet, mid, qos, info)

    def _sock_send(self, buf: bytes | bytearray) -> int:
        sent = super()._sock_send(buf)
        self.bytes_sent += sent
        return sent
