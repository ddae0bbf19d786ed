"""Check whether the broker of a site is connected to the central broker, by what it retains of its bridge."""

from __future__ import annotations

from typing import Final

from fedquilt_common.doctor.check import Check
from fedquilt_common.wire.topics import BRIDGE_DOWN, BRIDGE_UP

BRIDGE: Final = "bridge"
"""Name of the check."""
_LOOK: Final = 'docs/sites.md, "If the bridge does not connect", has the command that finds the reason'


def check_bridge(site: str, state: bytes | None) -> Check:
    """Judge the state of a site's bridge.

    Args:
        site: the name of the site.
        state: what its broker retains; None: nothing that this machine may read.
    """
    if state == BRIDGE_UP:
        return Check(BRIDGE, "ok", f"the broker of the site {site!r} is connected to the central broker")
    if state == BRIDGE_DOWN:
        said = f"the broker of the site {site!r} is not connected to the central broker: replies wait at the site"
        return Check(BRIDGE, "fail", said, f"Check the line and the bridge's certificate: {_LOOK}")
    said = f"unknown: the site's broker does not show whether it is connected to the central broker as {site!r}"
    advice = f"Check the name of the site, and install the site's new acl and mosquitto-tls.conf: {_LOOK}"
    return Check(BRIDGE, "warn", said, advice)
