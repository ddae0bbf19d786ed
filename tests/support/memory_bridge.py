"""The bridge of a site between two brokers in memory."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.wire.topics import TOPIC_RULES, Topics
from fedquilt_common.wire.transport import Incoming, MqttMessage


def connect_brokers(
    central: MemoryBroker, site: MemoryBroker, topics: Topics, boards: Iterable[str], relay: str
) -> None:
    """Let a site's broker and the central one exchange what crosses the bridge of a site with a relay, from now on."""
    filters = topics.site_filters(boards, relay)
    for source, target, direction in ((central, site, "in"), (site, central, "out")):

        def forward(incoming: Incoming, target: MemoryBroker = target) -> None:
            if isinstance(incoming, MqttMessage):
                retain = TOPIC_RULES[topics.parse(incoming.topic).kind].retained
                target.publish(incoming.topic, incoming.payload, incoming.header, retain)
                incoming.ack()

        side = MemoryTransport(source, "bridge", forward)
        side.connect()
        side.subscribe(name for way, name in filters if way == direction)
