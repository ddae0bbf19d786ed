"""What is an IP address, and which addresses only this machine reaches."""

from __future__ import annotations

import ipaddress


def is_address(name: str) -> bool:
    """Return whether ``name`` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address to listen on: a loopback address or ``localhost``."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
