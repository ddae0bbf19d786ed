"""Parse where a power meter publishes, such as ``mqtt://homeassistant.local/tele/plug/SENSOR#ENERGY.Power``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from fedquilt_common.address_text import hide_password
from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url

_FORM: Final = "write mqtt://[user:password@]host[:1883]/TOPIC, with #KEY.KEY at the end if the messages are JSON"


@dataclass(frozen=True)
class MeterTopic:
    """Where a meter publishes.

    Attributes:
        address: of the broker.
        topic: without wildcards.
        keys: lead to the watts in a JSON message; none if the message is the number itself.
    """

    address: BrokerAddress
    topic: str
    keys: tuple[str, ...] = ()


def parse_meter_topic(url: str) -> MeterTopic:
    """Parse a URL such as ``mqtt://homeassistant.local/tele/plug/SENSOR#ENERGY.Power``.

    Raises:
        ExperimentError: it is no such URL; the message shows the form.
    """
    shown = hide_password(url)
    try:
        parts = urlsplit(url)
        broker = parse_broker_url(f"{parts.scheme}://{parts.netloc}")
    except (ValueError, ExperimentError):
        raise ExperimentError(f"power-topic {shown!r} is not valid: {_FORM}") from None
    topic = unquote(parts.path.removeprefix("/"))
    keys = tuple(unquote(parts.fragment).split(".")) if parts.fragment else ()
    if not topic or parts.query or set(topic) & set("+#\0") or not all(keys):
        raise ExperimentError(f"power-topic {shown!r} names no topic without wildcards: {_FORM}")
    return MeterTopic(broker, topic, keys)
