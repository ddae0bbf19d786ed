"""What tests read from an agent's messages and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import AgentPresence, FailedMessage, NoticeMessage, Telemetry
from fedquilt_common.wire.parsing import parse_telemetry

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit, Peer


def presences(peer: Peer) -> list[AgentPresence]:
    return [AgentPresence.model_validate_json(message.payload) for message in peer.messages("presence")]


def failures(peer: Peer) -> list[FailedMessage]:
    return [found for found in _reports(peer) if isinstance(found, FailedMessage)]


def telemetry(peer: Peer) -> list[Telemetry]:
    return [found for found in _reports(peer) if isinstance(found, Telemetry)]


def notices(peer: Peer) -> list[NoticeMessage]:
    return [found for found in _reports(peer) if isinstance(found, NoticeMessage)]


def _reports(peer: Peer) -> list[Telemetry | FailedMessage | NoticeMessage]:
    return [parse_telemetry(message.payload, message.topic) for message in peer.messages("telemetry")]


def same(one: Any, other: Any) -> bool:
    """Compare arrays by name and value."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def plus(step: float, kit: Kit) -> dict[str, Any]:
    """Return the kit's arrays, each ``step`` larger."""
    return {name: x + np.float32(step) for name, x in FileArrays(kit.blob().path).items()}
