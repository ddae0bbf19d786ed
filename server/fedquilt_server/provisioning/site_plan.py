"""Check what a site asks for against a federation's record, and choose what it leaves open. Nothing is written."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from fedquilt_common.errors import FederationError
from fedquilt_common.experiment.relay_config import RelayConfig
from fedquilt_common.wire.topics import RELAY_SUFFIX
from fedquilt_server.provisioning.board_plan import check_level
from fedquilt_server.provisioning.names import check_host
from fedquilt_server.provisioning.record import NOT_ISSUED, FederationRecord, SiteRecord

LONGEST_SITE: Final = 48
"""Characters of a site's name: the common name of a certificate has 64 at most."""


def plan_site(record: FederationRecord, name: str, hosts: Sequence[str], port: int | None) -> SiteRecord:
    """Return the record of a site: as it was, with new hosts or a new port.

    Args:
        record: the federation.
        name: name of the site.
        hosts: names and addresses of the site's broker; empty keeps those that it had.
        port: its broker's port; None keeps the one that it had, or is 8883.

    Raises:
        FederationError: the name or a host cannot be used, or a new site has no host.
    """
    before = record.sites.get(name)
    _check_name(name)
    _check_central(record)
    for host in hosts:
        check_host(host)
    if before is not None:
        kept = {"hosts": tuple(hosts) or before.hosts, "port": port or before.port}
        return before.model_copy(update=kept)
    if not hosts:
        raise FederationError(
            f"the site {name!r} is new: give --broker, the name or address of its broker as its boards reach it"
        )
    return SiteRecord(hosts=tuple(hosts), port=port or 8883, connection=secrets.token_hex(16), **NOT_ISSUED)


def relay_name(record: FederationRecord, site: str) -> str:
    """Return the name of a site's relay, new or not.

    Raises:
        FederationError: a board has the name.
    """
    name = f"{site}{RELAY_SUFFIX}"
    if name in record.boards:
        raise FederationError(f"the relay of the site {site!r} would be {name!r}, but a board has this name")
    return name


def relay_config(record: FederationRecord, site: str) -> RelayConfig | None:
    """Return the configuration of a site's relay; None if the site has none."""
    own = record.sites[site]
    if own.relay is None:
        return None
    boards = {name: record.boards[name].clients for name in record.boards_behind(site)}
    return RelayConfig(
        broker=own.url, central=record.url, site=site, id=own.relay.name, federation=record.name, ca="ca.crt",
        cert="tls.crt", key="tls.key", boards=dict(boards),
    )  # fmt: skip


def _check_name(name: str) -> None:
    check_level(name, "site")
    if len(name) > LONGEST_SITE:
        raise FederationError(
            f"site {name!r}: has {len(name)} characters; a certificate has room for {LONGEST_SITE} at most"
        )


def _check_central(record: FederationRecord) -> None:
    """Check that Mosquitto can connect a bridge to the central broker's first host."""
    if ":" in record.hosts[0]:
        raise FederationError(
            f"the central broker's first host is {record.hosts[0]!r}: a bridge of Mosquitto cannot name an IPv6 "
            "address. Give the broker a name first: `fedquilt federation renew --broker NAME`"
        )
