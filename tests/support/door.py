"""The admission of a coordinator, to which a test sends single messages."""

from __future__ import annotations

from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.flood_control.flood_guard import FloodGuard, Mute
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage

TOPICS = Topics("lab")
CHUNK = 256 * 1024


def message(topic: str, payload: bytes = b"x", *, retained: bool = False, qos: int = 1) -> MqttMessage:
    return MqttMessage(topic, payload, b"", retained, lambda: None, qos)


def presence(agent: str, *, retained: bool = False) -> MqttMessage:
    content = AgentPresence(agent=agent, online=True, boot=1, clients=[0]).encode()
    return message(TOPICS.presence(agent), content, retained=retained)


class Door:
    """An admission of an experiment with four clients, and its guard."""

    def __init__(self, clients: int = 4) -> None:
        transport = MemoryTransport(MemoryBroker(), "coordinator", lambda _: None)
        self.guard = FloodGuard(clients, CHUNK)
        self.admission = Admission(transport, TOPICS, self.guard)

    @property
    def mutes(self) -> list[Mute]:
        return list(self.admission.advance())
