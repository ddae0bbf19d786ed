"""Write the files of a site that follow from a federation's record: those of its broker, and of its relay."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.yaml_text import dump_yaml
from fedquilt_server.provisioning.acl import SiteAgents, make_site_acl
from fedquilt_server.provisioning.broker_files import CONFIG, local_config, system_config
from fedquilt_server.provisioning.private_files import write_private
from fedquilt_server.provisioning.record import FederationRecord
from fedquilt_server.provisioning.site_bridge import bridge_section
from fedquilt_server.provisioning.site_plan import relay_config

RELAY: Final = "relay"
"""Folder of the relay's files, in that of its site."""
RELAY_CONFIG: Final = "relay.yaml"


def agents_behind(record: FederationRecord, site: str) -> SiteAgents:
    """Return the agents behind a site."""
    relay = record.sites[site].relay
    return SiteAgents(record.boards_behind(site), None if relay is None else relay.name)


def write_site(folder: Path, record: FederationRecord, site: str, revoked: str) -> None:
    """Write the files of a site that follow from the record.

    Args:
        folder: the site's.
        record: the federation, with the site.
        site: its name.
        revoked: the federation's revocation list.
    """
    port, agents = record.sites[site].port, agents_behind(record, site)
    bridge = bridge_section(record, site, agents)
    write_durably(folder / "revoked.crl", revoked)
    write_private(folder / "acl", make_site_acl(record.name, agents))
    write_durably(folder / CONFIG, local_config(folder, port, bridge))
    write_durably(folder / "mosquitto-tls.conf", system_config(port, bridge))
    if (config := relay_config(record, site)) is not None:
        values = config.model_dump(mode="json", exclude_defaults=True)
        head = "# Written by fedquilt federation broker.\n"
        write_durably(folder / RELAY / RELAY_CONFIG, head + dump_yaml(values))
