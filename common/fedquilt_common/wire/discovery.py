"""Connect to a machine by its name; a name in ``.local`` that the system cannot resolve is looked up with mDNS.

mDNS (RFC 6762) finds addresses and proves nothing: anybody in the network can answer. The certificate of the broker is
therefore checked against the name, never against an address that was found.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from fedquilt_common.errors import how_to_install

LOCAL_DOMAIN: Final = ".local"
QUERY_SECONDS: Final = 3.0
interfaces: Any = None
"""Addresses of the interfaces to ask on; None: the one of the default route, which needs no list of interfaces."""


def open_connection(host: str, port: int, timeout: float) -> socket.socket:
    """Open a TCP connection.

    Args:
        host: a name or an address.
        port: the port.
        timeout: seconds for each address.

    Raises:
        OSError: no address of the host accepts a connection, or its name has no address.
    """
    try:
        return socket.create_connection((host, port), timeout)
    except socket.gaierror:
        if not host.lower().rstrip(".").endswith(LOCAL_DOMAIN):
            raise
    return _connect_to_one(resolve_mdns(host), port, timeout)


def _connect_to_one(addresses: list[str], port: int, timeout: float) -> socket.socket:
    """Connect to the first address that accepts.

    Raises:
        OSError: none accepts.
    """
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError:
            continue
    return socket.create_connection((addresses[-1], port), timeout)


def resolve_mdns(host: str) -> list[str]:
    """Return the IPv4 addresses that this network's machines announce for a name in ``.local``.

    Raises:
        OSError: nobody answers, or the package zeroconf is missing.
    """
    try:
        import zeroconf
    except ModuleNotFoundError:
        raise OSError(
            f"this system does not resolve {host}: install libnss-mdns and avahi-daemon, or {how_to_install('mdns')}"
        ) from None
    asker = zeroconf.Zeroconf(interfaces=interfaces or zeroconf.InterfaceChoice.Default)
    try:
        resolver = zeroconf.AddressResolverIPv4(f"{host.rstrip('.')}.")  # type: ignore[attr-defined]  # not in __all__
        resolver.request(asker, QUERY_SECONDS * 1000)
        addresses = resolver.parsed_addresses()
    finally:
        asker.close()
    if not addresses:
        raise OSError(
            f"nobody in this network announces {host}: check that `fedquilt federation broker --announce` or "
            "`fedquilt federation announce` runs, and that the network passes multicast between the boards"
        )
    return addresses
