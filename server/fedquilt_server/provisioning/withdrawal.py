"""Withdraw certificates, and find those that an interrupted command left behind."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from fedquilt_common.errors import FederationError
from fedquilt_common.wire.topics import RESERVED
from fedquilt_server.provisioning.authority import certificate_serial
from fedquilt_server.provisioning.record import (
    BoardRecord,
    FederationRecord,
    RelayRecord,
    RevokedCertificate,
    SiteRecord,
    UserRecord,
)


def withdraw(
    record: FederationRecord,
    user: str,
    before: BoardRecord | SiteRecord | RelayRecord | UserRecord | None,
    certificate: Path,
) -> FederationRecord:
    """Return the record with a user's certificates withdrawn; the same record if all of them are already.

    Args:
        record: the federation.
        user: the common name of the certificates.
        before: the record with the serial number of the user's certificate; None if it has none.
        certificate: the file of the user's certificate. It holds another one if a command was interrupted.
    """
    now = datetime.now(timezone.utc).replace(microsecond=0)
    serials = {"" if before is None else before.serial, certificate_serial(certificate)} - {"", *_withdrawn(record)}
    added = [RevokedCertificate(serial=serial, board=user, at=now) for serial in sorted(serials)]
    return record.model_copy(update={"withdrawn": (*record.withdrawn, *added)}) if added else record


def withdraw_users(record: FederationRecord, folder: Path) -> FederationRecord:
    """Return the record with the certificates of the workstation's users withdrawn.

    A record of an earlier version does not list them: then those in the users' files are withdrawn.

    Args:
        record: the federation.
        folder: its folder.
    """
    for user in RESERVED:
        record = withdraw(record, user, record.users.get(user), folder / user / "tls.crt")
    return record


def list_withdrawn_users(record: FederationRecord) -> list[str]:
    """List the users of the workstation of whom a certificate was withdrawn."""
    users = {entry.board for entry in record.withdrawn}
    return [user for user in RESERVED if user in users]


def check_bundle(record: FederationRecord, board: str, certificate: Path) -> None:
    """Check that a board's certificate, if its file exists, is the one in the record.

    Raises:
        FederationError: it is another one, or is withdrawn: a command was interrupted.
    """
    serial = certificate_serial(certificate)
    if certificate.exists() and (serial != record.boards[board].serial or serial in _withdrawn(record)):
        raise FederationError(
            f"{certificate} is not the certificate that the federation's record has for {board}, so `fedquilt "
            f"provision` was interrupted: run `fedquilt provision {board} --renew`"
        )


def _withdrawn(record: FederationRecord) -> set[str]:
    return {entry.serial for entry in record.withdrawn}
