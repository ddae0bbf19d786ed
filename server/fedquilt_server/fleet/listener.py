"""Receive the presence and the telemetry of every board of a federation, with the identity ``watch``."""

from __future__ import annotations

import logging
import queue
import secrets
import time
from typing import Final

from fedquilt_common.errors import BrokerUnreachableError, FederationError, ProtocolError
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.client_id import agent_client_id
from fedquilt_common.wire.mosquitto_version import VERSION_TOPIC
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import BRIDGE_DOWN, WATCH, TopicKind, Topics
from fedquilt_common.wire.transport import Connected, Crashed, Disconnected, Incoming, MqttMessage
from fedquilt_server.fleet.health import BoardHealth, known_boards, mark_site, update_board
from fedquilt_server.provisioning.federation import Federation

log = logging.getLogger(__name__)

STORED_SECONDS: Final = 5.0
"""Seconds after a connection for what the broker had stored; a broker that is not Mosquitto does not report its end."""


class TopicListener:
    """Receives the messages on some topics of a federation; it publishes nothing.

    Args:
        address: the broker, with the identity to use.
        topics: the federation's topics.
        kinds: the kinds of topics to receive, of all agents.

    Attributes:
        trouble: why there is no connection; empty while there is one.

    Raises:
        ExperimentError: the identity's files cannot be used.
    """

    def __init__(self, address: BrokerAddress, topics: Topics, *kinds: TopicKind) -> None:
        self.trouble = ""
        self._topics, self._kinds = topics, kinds
        self._connected_at, self._stored, self._joined = 0.0, False, False
        self._events: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        client_id = agent_client_id(topics.federation, WATCH, secrets.token_hex(16))
        self._transport = MqttTransport(address, client_id, self._events.put, session_expiry=0)

    def __enter__(self) -> TopicListener:
        self._transport.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close(end_session=True)

    @property
    def complete(self) -> bool:
        """Whether everything that the broker had stored has arrived."""
        return self._stored or (self._joined and time.monotonic() - self._connected_at >= STORED_SECONDS)

    def receive(self, timeout: float) -> MqttMessage | None:
        """Wait for one message, at most ``timeout`` seconds.

        Raises:
            BrokerUnreachableError: the first connection failed; later ones are tried again.
        """
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        match event:
            case MqttMessage():
                event.ack()
                if event.topic != VERSION_TOPIC:
                    return event
                self._stored = True
            case Connected():
                self._joined, self._stored, self.trouble = True, False, ""
                self._connected_at = time.monotonic()
                self._transport.subscribe(self._topics.filters(*self._kinds))
                # The broker answers in order: this retained message arrives after all other retained messages.
                self._transport.subscribe([VERSION_TOPIC])
            case Disconnected():
                if not self._joined:
                    raise BrokerUnreachableError(f"{event.reason}. {event.advice}")
                self.trouble = event.reason
            case Crashed():
                raise event.error
        return None


class FleetListener:
    """The boards of a federation, as the broker reports them.

    Args:
        federation: the federation.
        url: the broker; empty: the address that the boards use.

    Attributes:
        boards: the latest state of each board.

    Raises:
        ExperimentError: the URL or the identity's files cannot be used.
        FederationError: there is no federation, or it has no identity ``watch``.
    """

    def __init__(self, federation: Federation, url: str = "") -> None:
        record = federation.record
        self.boards: dict[str, BoardHealth] = known_boards(record)
        self._topics = Topics(record.name)
        address = user_address(federation, WATCH, url)
        self._listener = TopicListener(address, self._topics, "presence", "telemetry", "sites")

    def __enter__(self) -> FleetListener:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    @property
    def trouble(self) -> str:
        """Why there is no connection; empty while there is one."""
        return self._listener.trouble

    @property
    def complete(self) -> bool:
        """Whether everything that the broker had stored has arrived."""
        return self._listener.complete

    def take(self, timeout: float, now: float) -> BoardHealth | None:
        """Wait for one message and return the board that it changes; None if it changes none, or those of a site.

        Args:
            timeout: seconds to wait at most.
            now: Unix time.

        Raises:
            BrokerUnreachableError: the first connection failed; later ones are tried again.
        """
        message = self._listener.receive(timeout)
        if message is None:
            return None
        try:
            if site := self._topics.parse(message.topic).site:
                self.boards = mark_site(self.boards, site, message.payload == BRIDGE_DOWN)
                return None
            changed = update_board(
                self.boards, self._topics, message.topic, message.payload, retained=message.retained, now=now
            )
        except ProtocolError as error:
            log.warning("ignored: %s", error)
            return None
        if changed is not None:
            self.boards[changed.board] = changed
        return changed


def user_address(federation: Federation, user: str, url: str = "") -> BrokerAddress:
    """Return the broker's address with the identity of one of the workstation's users.

    Args:
        federation: the federation.
        user: ``coordinator``, ``watch`` or ``homeassistant``.
        url: the broker; empty: the address that the boards use.

    Raises:
        FederationError: a file of the user's is missing or empty.
        ExperimentError: the URL cannot be used.
    """
    record, identity = federation.record, federation.folder / user
    files = [identity / name for name in ("ca.crt", "tls.crt", "tls.key")]
    for path in files:
        if not path.exists() or not path.stat().st_size:
            raise FederationError(f"{path} is missing or empty: `fedquilt federation renew` writes it")
    return parse_broker_url(url or record.url).with_files(*map(str, files))
