"""Names of boards and brokers as the other programs take them: host names, and words that Ansible keeps for itself."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fedquilt_common.errors import FederationError

GROUPS: Final = frozenset({"all", "ungrouped", "localhost", "agents", "jetsons", "broker", "coordinator", "hostvars"})
"""No names for boards: hosts and groups of the inventory."""
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST: Final = re.compile(f"{_LABEL}([.]{_LABEL})*[.]?")


def hostname_of(board: str) -> str:
    """A board's name as its host name, with ``-`` for what none may have; empty where nothing is left."""
    return re.sub(r"[^a-z0-9-]", "-", board.lower()).strip("-")[:63]


def check_user(user: str) -> None:
    """Raises FederationError for what no Linux calls a user; empty is nobody in particular."""
    if user and not re.fullmatch("[a-z_][a-z0-9_-]{0,31}", user):
        raise FederationError(f"--user {user!r}: is no name of a Linux user: small letters, digits, '_' and '-'")


def check_host(host: str, option: str = "--broker") -> str:
    """A name or an address, without a port. Raises FederationError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        if len(host) <= 253 and _HOST.fullmatch(host) and not host.replace(".", "").isdigit():
            return host
    raise FederationError(f"{option} {host!r}: must be a host name or an address, and no port")
