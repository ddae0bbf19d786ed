"""Write the Ansible inventory of a federation: the address, the kind and the clients of each board, and the sites.

A coordinator reads it, too: which board hosts each client, and which boards are revoked.
"""

from __future__ import annotations

from typing import Any, Final

from fedquilt_common.files.yaml_text import dump_yaml_1_1
from fedquilt_common.wire.topics import SITE_USER
from fedquilt_server.provisioning.kinds import kind_of
from fedquilt_server.provisioning.record import BoardRecord, FederationRecord, SiteRecord

_HEAD = "# Written by fedquilt. Put your own settings into group_vars/ and host_vars/ in this folder.\n"
CLIENTS_KEY: Final = "fedquilt_clients"
"""The variable with the clients that a board hosts."""
FEDERATION_KEY: Final = "fedquilt_federation"
"""The variable of all hosts with the name of the federation."""
REVOKED_KEY: Final = "fedquilt_revoked"
"""The variable of all hosts with the names of the revoked boards."""
RELAYS_KEY: Final = "fedquilt_relays"
"""The variable of all hosts with the site of each relay."""
SITE_KEY: Final = "fedquilt_site"
"""The variable of a site's broker and of its relay with the name of the site."""
_HERE = {"localhost": {"ansible_connection": "local"}}


def inventory(record: FederationRecord) -> str:
    """Return the inventory in YAML. Revoked boards are no hosts, only names. Jetsons are also in a separate group.

    The broker of a site is a host with the name of its bridge's user; a relay has its own name.
    """
    boards = {name: board for name, board in sorted(record.boards.items()) if board.revoked is None}
    agents: dict[str, Any] = {"hosts": {name: _variables(board) for name, board in boards.items()}}
    jetsons = {name: None for name, board in boards.items() if kind_of(board.kind).jetson}
    children: dict[str, Any] = {"broker": {"hosts": _HERE}, "coordinator": {"hosts": _HERE}, "agents": agents}
    if jetsons:
        children["jetsons"] = {"hosts": jetsons}
    children |= {"sites": {"hosts": _site_hosts(record)}, "relays": {"hosts": _relay_hosts(record)}}
    revoked = sorted(name for name, board in record.boards.items() if board.revoked is not None)
    shared: dict[str, Any] = {FEDERATION_KEY: record.name, "fedquilt_broker": record.url}
    shared |= {REVOKED_KEY: revoked, RELAYS_KEY: record.relays}
    return _HEAD + dump_yaml_1_1({"all": {"vars": shared, "children": children}})


def site_host(site: str) -> str:
    """Return the name of a site's broker as a host."""
    return f"{SITE_USER}{site}"


def _site_hosts(record: FederationRecord) -> dict[str, Any]:
    return {site_host(name): _site_variables(name, site) for name, site in sorted(record.sites.items())}


def _relay_hosts(record: FederationRecord) -> dict[str, Any]:
    return {relay: _site_variables(name, record.sites[name]) for relay, name in record.relays.items()}


def _site_variables(name: str, site: SiteRecord) -> dict[str, Any]:
    return {"ansible_host": site.hosts[0], SITE_KEY: name}


def _variables(board: BoardRecord) -> dict[str, Any]:
    login = {"ansible_user": board.user} if board.user else {}
    return {"ansible_host": board.host, **login, "fedquilt_kind": board.kind, CLIENTS_KEY: board.clients}
