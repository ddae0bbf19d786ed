"""Check what the relay of a site needs: its configuration, the site's broker, and the way to the central one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fedquilt_common.doctor.bridge import BRIDGE
from fedquilt_common.doctor.broker import OWN_CERTIFICATE, check_broker, check_way
from fedquilt_common.doctor.check import Check
from fedquilt_common.doctor.settings import CONFIGURATION, check_holder, read_address
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import merge_config
from fedquilt_common.experiment.relay_config import RelayConfig
from fedquilt_common.plurals import counted

_CENTRAL: Final = " (central)"


def is_relay(settings: Mapping[str, Any]) -> bool:
    """Whether a configuration file is that of a site's relay: it names a site, and hosts no clients."""
    return "site" in settings and "clients" not in settings


def check_relay(settings: Mapping[str, Any]) -> list[Check]:
    """Check a relay's configuration, its way to the site's broker, and the site's connection to the central one.

    Args:
        settings: the keys of ``relay.yaml``, with paths that can be opened.
    """
    try:
        config = merge_config(RelayConfig, "relay", None, dict(settings))
        owners = config.owners
        address, central = read_address(settings), read_address({**settings, "broker": config.central})
    except ExperimentError as error:
        advice = "Correct relay.yaml, or copy it again from the folder sites/SITE/relay of the federation"
        return [Check(CONFIGURATION, "fail", str(error).replace("\n", "; "), advice)]
    checks = [_describe(config, owners)]
    if address is not None:
        checks += [*check_holder(address, config.name), *check_broker(address, config.federation, config.site)]
    if central is None or any((check.name, check.state) == (BRIDGE, "ok") for check in checks):
        return checks
    way = [check for check in check_way(central) if check.name != OWN_CERTIFICATE]
    return [*checks, *(replace(check, name=check.name + _CENTRAL) for check in way)]


def _describe(config: RelayConfig, owners: Mapping[int, str] | None) -> Check:
    """Report which boards the configuration lists; without a list, any board can claim any client."""
    head = f"{config.name} serves the site {config.site!r}"
    if owners is None:
        advice = "List the clients of each board: `fedquilt federation broker --site SITE --relay` writes the file"
        return Check(CONFIGURATION, "warn", f"{head}: any board may host any client", advice)
    hosts = f"{counted(len(config.boards or ()), 'board')} and {counted(len(owners), 'client')}"
    return Check(CONFIGURATION, "ok", f"{head} with {hosts}")
