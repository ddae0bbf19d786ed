"""Check the names of boards, brokers and users: host names, Linux users, and words that Ansible reserves."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fedquilt_common.errors import FederationError

GROUPS: Final = frozenset(
    {"all", "ungrouped", "localhost", "agents", "jetsons", "sites", "relays", "broker", "coordinator", "hostvars"}
)
"""Hosts and groups of the inventory, which cannot be names of boards."""
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST: Final = re.compile(f"{_LABEL}([.]{_LABEL})*[.]?")


def hostname_of(board: str) -> str:
    """Return a board's host name: its name, with ``-`` for characters that a host name cannot have. It may be empty."""
    return re.sub(r"[^a-z0-9-]", "-", board.lower()).strip("-")[:63].rstrip("-")


def broker_name(federation: str) -> str:
    """Return the name of a federation's broker in mDNS. It stays when the broker's address changes.

    The broker's certificate holds it.
    """
    return f"fedquilt-{hostname_of(federation) or 'broker'}"[:63] + ".local"


def check_user(user: str, option: str = "--user") -> None:
    """Check the name of a Linux user; it may be empty.

    Raises:
        FederationError: Linux does not accept the name.
    """
    if user and not re.fullmatch("[a-z_][a-z0-9_-]{0,31}", user):
        raise FederationError(
            f"{option} {user!r}: is not a name for a Linux user; use lower-case letters, digits, '_' and '-'"
        )


def check_host(host: str, option: str = "--broker") -> str:
    """Check a host name or an address and return it.

    Raises:
        FederationError: it is neither, or has a port.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        if len(host) <= 253 and _HOST.fullmatch(host) and not host.replace(".", "").isdigit():
            return host
    raise FederationError(f"{option} {host!r}: must be a host name or an address, without a port")
