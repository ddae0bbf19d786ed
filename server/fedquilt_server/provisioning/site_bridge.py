"""Write the section of a site's Mosquitto that forwards topics between the site's broker and the central one."""

from __future__ import annotations

from typing import Final

from fedquilt_common.wire.topics import SITE_USER, Topics
from fedquilt_server.provisioning.acl import SiteAgents
from fedquilt_server.provisioning.broker_files import SYSTEM_FOLDER
from fedquilt_server.provisioning.record import FederationRecord

BRIDGE: Final = "bridge"
"""Name of the files with the bridge's own identity at the central broker."""
_SECTION: Final = """
# The bridge to the central broker. It authenticates with a certificate of its own; the central broker's ACL grants it
# the rights of the boards behind this site, and no others.
connection {user}
address {host}:{port}
bridge_cafile {folder}/ca.crt
bridge_certfile {folder}/{bridge}.crt
bridge_keyfile {folder}/{bridge}.key
# MQTT 5: earlier versions drop the headers of chunks.
bridge_protocol_version mqttv50
# The random part keeps other clients from ending this connection.
remote_clientid {user}-{connection}
# While the line is cut, this broker queues what its boards publish.
cleansession false
try_private true
# A dead line is found after 30 s.
keepalive_interval 20
restart_timeout 1 15
# The central broker retains whether this site is connected: 1, or 0 as the bridge's last will.
notifications true
notification_topic {site}
# Each topic crosses in one direction only, so that no message can circle. in: to the boards. out: from the boards.
"""


def bridge_section(record: FederationRecord, site: str, agents: SiteAgents) -> str:
    """Return the section ``connection`` of a site's configuration.

    Args:
        record: the federation, with the site.
        site: its name.
        agents: those behind it.
    """
    topics = Topics(record.name)
    head = _SECTION.format(
        user=f"{SITE_USER}{site}", host=record.hosts[0], port=record.port, folder=SYSTEM_FOLDER, bridge=BRIDGE,
        connection=record.sites[site].connection, site=topics.site(site),
    )  # fmt: skip
    return head + "".join(
        f"topic {name} {direction} 1\n" for direction, name in topics.site_filters(agents.boards, agents.relay)
    )
