"""The socket to the broker sends small packets at once."""

from __future__ import annotations

import socket

from paho.mqtt.client import MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from fedquilt_common.wire.mqtt_client import CountingClient


def test_a_small_packet_does_not_wait_for_an_acknowledgement() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        client = CountingClient(CallbackAPIVersion.VERSION2, "a", protocol=MQTTv5)
        client.connect_async(*broker.getsockname())
        with client._create_socket_connection() as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
