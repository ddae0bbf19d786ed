"""Read the settings that name the broker and this machine, and check that the certificate has the machine's name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from fedquilt_common.doctor.check import Check
from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url
from fedquilt_common.wire.certificate import read_certificate

CONFIGURATION: Final = "configuration"
"""Name of the check of an agent's or a relay's file."""


def read_address(settings: Mapping[str, Any]) -> BrokerAddress | None:
    """Return the broker that settings name, with their TLS files and the password of the environment.

    Returns:
        None if they name no broker.

    Raises:
        ExperimentError: the address is not valid, or files are given for one without TLS.
    """
    if not settings.get("broker"):
        return None
    address = parse_broker_url(str(settings["broker"]))
    files = [str(settings.get(name) or "") for name in ("ca", "cert", "key")]
    if any(files) and not address.tls:
        raise ExperimentError(f"--ca, --cert and --key need an mqtts:// address, not {address}")
    return (address.with_files(*files) if any(files) else address).with_password(os.environ.get(BROKER_PASSWORD, ""))


def check_holder(address: BrokerAddress, name: str) -> list[Check]:
    """Check that a federation has issued the certificate for this machine: its user at the broker is the agent's name.

    Args:
        address: names the certificate.
        name: of the agent or the relay.

    Returns:
        Nothing without a certificate of a federation that can be read.
    """
    try:
        certificate = read_certificate(address.cert) if address.cert else None
    except OSError:  # the check of the TLS files reports it
        return []
    if certificate is None or not certificate.federation:
        return []
    said = f"{address.cert} is of {certificate.name}"
    if certificate.name == name:
        return [Check("certificate's name", "ok", said)]
    advice = (
        f"The broker's ACL lets {certificate.name} write as itself only: use its own files for {name}, or correct `id`"
    )
    return [Check("certificate's name", "fail", f"{said}, not of {name}", advice)]
