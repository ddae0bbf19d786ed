"""When the certificates of the broker and of the workstation end, and which boards a renewal leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from fedquilt_common.doctor.broker import WARN_DAYS
from fedquilt_common.errors import ExperimentError, FederationError
from fedquilt_common.experiment.agent_config import read_agent_config
from fedquilt_common.wire.topics import RESERVED
from fedquilt_server.provisioning.authority import expiry
from fedquilt_server.provisioning.federation import Federation

RENEW: Final = "`fedquilt federation renew`"


def certificate_ends(federation: Federation) -> dict[str, datetime]:
    """Return the end of the broker's certificate and of those of the workstation's users; missing ones are left out.

    Raises:
        FederationError: a file is not a certificate.
    """
    files = {"broker": federation.broker_folder / "broker.crt"}
    files |= {user: federation.folder / user / "tls.crt" for user in RESERVED}
    return {name: _read_end(path) for name, path in files.items() if path.exists()}


def _read_end(path: Path) -> datetime:
    try:
        return expiry(x509.load_pem_x509_certificate(path.read_bytes()))
    except ValueError as error:
        raise FederationError(f"{path} is not a certificate ({error}): {RENEW} writes it again") from None


def describe_ends(ends: Mapping[str, datetime], now: datetime) -> list[str]:
    """Return a line for each day on which certificates end, from those that have expired to 30 days from now.

    Args:
        ends: the end of each certificate by the name of its user.
        now: the time.
    """
    days: dict[str, list[str]] = {}
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        if end - now < timedelta(days=WARN_DAYS):
            days.setdefault(f"expired on {end:%Y-%m-%d}" if end < now else f"good until {end:%Y-%m-%d}", []).append(
                name
            )
    return [f"Certificates of the workstation, {day}: {', '.join(names)}. Run {RENEW}" for day, names in days.items()]


def boards_elsewhere(federation: Federation) -> dict[str, str]:
    """Return the boards, not revoked, whose files name another address of the broker than the federation's record.

    Returns:
        Why the file of a board cannot be read, by its name; empty if it can.
    """
    record = federation.record
    active = {name: board for name, board in sorted(record.boards.items()) if board.revoked is None}
    files = {name: path for name in active if (path := federation.board_folder(name) / "agent.yaml").exists()}
    found = {name: _read_address(path) for name, path in files.items()}
    return {name: why for name, (address, why) in found.items() if address != record.url_of(active[name])}


def _read_address(path: Path) -> tuple[str | None, str]:
    """Return the broker's address in a board's configuration, and why it cannot be read."""
    try:
        return str(read_agent_config(path).get("broker")), ""
    except ExperimentError as error:
        return None, str(error)
