"""Follow a run through its broker, with the rights of the identity ``watch``."""

from __future__ import annotations

import logging
import time
from typing import Final

from fedquilt_common.errors import ProtocolError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.fleet.listener import TopicListener
from fedquilt_server.watch.federation_state import KINDS, FederationState
from fedquilt_server.watch.state import WatchState

log = logging.getLogger(__name__)

UNKNOWN: Final = "MQTT shows no scores, bytes or failures; the page does"


class BrokerSource:
    """Follows the control messages of a federation.

    Args:
        address: the broker, with the identity to use.
        federation: the federation's name.

    Raises:
        ProtocolError: the name cannot be used in a topic.
        ExperimentError: the identity's files cannot be used.
    """

    def __init__(self, address: BrokerAddress, federation: str) -> None:
        topics = Topics(federation)
        self._name = f"{address.without_password()}, federation {federation}"
        self._state = FederationState(topics)
        self._listener = TopicListener(address, topics, *KINDS)
        self._shown: object = None

    def __enter__(self) -> BrokerSource:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    @property
    def complete(self) -> bool:
        """Whether everything that the broker had stored has arrived."""
        return self._listener.complete

    def next(self, timeout: float) -> WatchState | None:
        """Return the state after all messages that have arrived; None if nothing has changed within ``timeout`` s.

        Raises:
            BrokerUnreachableError: the first connection failed; later ones are tried again.
        """
        end, message = time.monotonic() + timeout, self._listener.receive(timeout)
        while message is not None:
            self._take(message)
            message = self._listener.receive(0.0) if time.monotonic() < end else None
        snapshot = self._state.snapshot(time.time())
        health = tuple(board.health for board in snapshot.boards)  # a board also becomes silent without a message
        now = snapshot.version, self._listener.trouble, self.complete, health
        if now == self._shown or not (self.complete or self._listener.trouble):
            return None
        self._shown = now
        return WatchState(snapshot, self._name, self._listener.trouble, UNKNOWN)

    def _take(self, message: MqttMessage) -> None:
        try:
            self._state = self._state.take(message.topic, message.payload, retained=message.retained, now=time.time())
        except ProtocolError as error:
            log.warning("ignored: %s", error)
