"""Power figures from an MQTT topic of the board's owner: a smart plug, a USB meter, home automation."""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from fedquilt_client.power import MOST_WATTS, PowerReading, PowerSample, is_power
from fedquilt_client.power_programs import ProgramError, parse_watts
from fedquilt_common.wire.messages import METER
from fedquilt_common.wire.meter_topic import MeterTopic
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Connected, Crashed, Disconnected, Incoming, MqttMessage

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 300.0
"""How long a figure counts: many meters publish only when it changes, or every few minutes."""
MOST_PAYLOAD: Final = 65_536
"""Bytes of a message that are read."""


def read_watts(payload: bytes, keys: Sequence[str]) -> float:
    """Return the watts in a message.

    Raises:
        ProgramError: it has no number from 0 to ``MOST_WATTS`` at this place.
    """
    text = payload[:MOST_PAYLOAD].decode(errors="replace")
    if not keys:
        return parse_watts(text)
    try:
        found: Any = json.loads(text)
        for key in keys:
            found = found[int(key)] if isinstance(found, list) else found[key]
        watts = math.nan if isinstance(found, bool) else float(found)
    except (ValueError, TypeError, LookupError, RecursionError):
        watts = math.nan
    if not is_power(watts):
        raise ProgramError(f"{'.'.join(keys)} is no power in watts from 0 to {MOST_WATTS:.0f} in {text.strip()[:80]!r}")
    return watts


class TopicMeter:
    """Keeps the newest figure of a meter's topic. It stays connected, because most meters do not retain their figures.

    Args:
        topic: where the meter publishes.
        clock: returns monotonic seconds.
    """

    source = METER

    def __init__(self, topic: MeterTopic, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = f"the topic {topic.topic} at {topic.address}"
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, float] | None = None
        self._works = True
        self._transport = MqttTransport(
            topic.address, f"fedquilt-meter-{secrets.token_hex(6)}", self._take, session_expiry=0
        )

    def start(self) -> None:
        """Connect in the background; the connection is made again whenever it is lost."""
        self._transport.connect()

    def close(self) -> None:
        """Disconnect."""
        self._works = False  # the end of the connection is no news
        self._transport.close(end_session=True)

    def read(self) -> PowerReading:
        """Return the newest figure; None if there is none, or it is older than ``FRESH_SECONDS``."""
        with self._lock:
            last = self._last
        return PowerSample(last[1]) if last is not None and self._clock() - last[0] <= FRESH_SECONDS else None

    def _take(self, incoming: Incoming) -> None:
        match incoming:
            case Connected():
                self._transport.subscribe([self._topic.topic])
            case Disconnected():
                self._warn(incoming.reason)
            case Crashed():
                self._warn(str(incoming.error))
            case MqttMessage():
                incoming.ack()
                self._take_figure(incoming.payload)

    def _take_figure(self, payload: bytes) -> None:
        try:
            watts = read_watts(payload, self._topic.keys)
        except ProgramError as error:
            self._warn(str(error))
            return
        with self._lock:
            self._last = self._clock(), watts
        self._works = True

    def _warn(self, reason: str) -> None:
        """Log why there is no figure, once until there is one again."""
        if self._works:
            log.warning("no power figure from %s: %s", self.name, reason)
        self._works = False
