"""What Home Assistant's MQTT discovery needs: one device per board, with a sensor for each value that it reports.

https://www.home-assistant.io/integrations/mqtt/#device-discovery-payload describes the format. Every message is
retained. All topics are below ``homeassistant/``, outside the federation's name space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fedquilt_common import __version__
from fedquilt_server.fleet.health import BoardHealth
from fedquilt_server.provisioning.board_rows import kind_label

ONLINE: Final = b"online"
OFFLINE: Final = b"offline"
_MIB: Final = 1 << 20
_JOULES_PER_WATT_HOUR: Final = 3600.0
_MEASUREMENT: Final = {"platform": "sensor", "state_class": "measurement"}
_SENSORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "temperature": {
        **_MEASUREMENT, "name": "Temperature", "device_class": "temperature", "unit_of_measurement": "°C",
    },
    "power": {**_MEASUREMENT, "name": "Power", "device_class": "power", "unit_of_measurement": "W"},
    "energy": {
        "platform": "sensor", "state_class": "total_increasing", "name": "Energy", "device_class": "energy",
        "unit_of_measurement": "Wh",
    },
    "memory": {**_MEASUREMENT, "name": "Memory", "device_class": "data_size", "unit_of_measurement": "MiB"},
    "training": {**_MEASUREMENT, "name": "Training", "unit_of_measurement": "%", "icon": "mdi:school"},
    "problem": {"platform": "binary_sensor", "name": "Power supply and temperature", "device_class": "problem"},
}  # fmt: skip
"""Each sensor by its key in the state."""


def bridge_topic(federation: str) -> str:
    """Topic of whether this program runs; a sensor is available only while it does."""
    return f"homeassistant/fedquilt/{federation}/availability"


def own_filters(federation: str) -> list[str]:
    """Filters for everything that is published for a federation."""
    return [f"homeassistant/device/{_slug(federation)}/+/config", f"homeassistant/fedquilt/{federation}/+/+"]


def board_topics(federation: str, board: str) -> dict[str, str]:
    """Return the topics of a board's ``config``, ``state`` and ``availability``."""
    below = f"homeassistant/fedquilt/{federation}/{board}"
    return {
        "config": f"homeassistant/device/{_slug(federation)}/{_plain(board)}/config",
        "state": f"{below}/state",
        "availability": f"{below}/availability",
    }


def allowed_topics(federation: str, boards: Iterable[str]) -> set[str]:
    """Return every topic that may hold a message while these boards have an identity."""
    return {topic for board in boards for topic in board_topics(federation, board).values()}


def boards_of(federation: str, topics: Iterable[str]) -> set[str]:
    """Return the boards whose availability is among the topics."""
    levels = [topic.split("/") for topic in topics]
    return {
        level[3]
        for level in levels
        if len(level) == 5 and board_topics(federation, level[3])["availability"] == "/".join(level)
    }


def board_messages(federation: str, board: BoardHealth) -> dict[str, bytes]:
    """Return what to publish for a board: its availability and, once it has reported its health, its sensors."""
    topics = board_topics(federation, board.board)
    messages = {topics["availability"]: ONLINE if board.state == "joined" else OFFLINE}
    if board.reported:
        state = _state(board)
        messages[topics["config"]] = _encode(_config(federation, board, topics, state))
        messages[topics["state"]] = _encode(state)
    return messages


def _state(board: BoardHealth) -> dict[str, Any]:
    """Return the values of the sensors that the board has."""
    parts = board.training.values()
    values = {
        "temperature": board.temperature,
        "power": board.power,
        "energy": None if board.joules is None else round(board.joules / _JOULES_PER_WATT_HOUR, 4),
        "memory": None if board.memory_used is None else round(board.memory_used / _MIB),
        "training": round(100 * sum(parts) / len(parts)) if parts else 0,
        "problem": None if board.throttled is None else "ON" if board.throttled & 0xF else "OFF",
    }
    return {name: value for name, value in values.items() if value is not None}


def _config(federation: str, board: BoardHealth, topics: Mapping[str, str], state: Mapping[str, Any]) -> dict[str, Any]:
    identifier = f"{_slug(federation)}_{_plain(board.board)}"
    return {
        "device": {
            "identifiers": [identifier],
            "name": board.board,
            "manufacturer": "fedquilt",
            "model": kind_label(board.kind),
            "sw_version": board.version,
        },
        "origin": {"name": "fedquilt", "sw_version": __version__},
        "components": {name: _component(name, identifier) for name in state},
        "state_topic": topics["state"],
        "availability": [{"topic": bridge_topic(federation)}, {"topic": topics["availability"]}],
        "availability_mode": "all",
        "qos": 1,
    }


def _component(name: str, device: str) -> dict[str, Any]:
    return {**_SENSORS[name], "unique_id": f"{device}_{name}", "value_template": f"{{{{ value_json.{name} }}}}"}


def _slug(federation: str) -> str:
    return f"fedquilt_{_plain(federation)}"


def _plain(name: str) -> str:
    """Return a name with the characters that Home Assistant allows in an identifier."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _encode(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
