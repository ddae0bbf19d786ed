"""Report what `fedquilt federation renew` has renewed and withdrawn, and who needs new files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from fedquilt_common.wire.topics import COORDINATOR, RESERVED
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.site_steps import note_all_sites
from fedquilt_server.provisioning.withdrawal import list_withdrawn_users


def print_renewal(federation: Federation, ends: Mapping[str, datetime], elsewhere: Sequence[str]) -> None:
    """Print what was renewed and withdrawn, and which programs, boards and sites need new files.

    Args:
        federation: the federation, with its new certificates.
        ends: the end of each new certificate by the name of its user.
        elsewhere: the boards whose files name another address of the broker.
    """
    record, until = federation.record, max(ends.values())
    typer.echo(f"Renewed the certificates of {', '.join(ends)} until {until:%Y-%m-%d}.")
    for sentence in describe_withdrawal(list_withdrawn_users(record), federation.folder):
        typer.echo(sentence)
    typer.echo(f"Boards that you provision from now on connect to the broker at {record.url}")
    if elsewhere:
        number = f"{len(elsewhere)} {'board has' if len(elsewhere) == 1 else 'boards have'}"
        typer.echo(f"{number} another address of the broker in their files: {', '.join(elsewhere)}.")
        typer.echo("For each of them, run `fedquilt provision NAME --renew`. Then flash its card again, or install the")
        typer.echo("new files with Ansible.")
    note_all_sites(federation)


def renewal_row(federation: Federation, ends: Mapping[str, datetime], elsewhere: Sequence[str]) -> dict[str, Any]:
    """Return what ``print_renewal`` prints, for JSON; the arguments are the same."""
    record = federation.record
    withdrawn = list_withdrawn_users(record)
    return {
        "broker": record.url,
        "hosts": record.hosts,
        "certificates": {name: end.isoformat() for name, end in ends.items()},
        "withdrawn": withdrawn,
        "notes": describe_withdrawal(withdrawn, federation.folder),
        "other_address": list(elsewhere),
        "sites": sorted(record.sites),
    }


def describe_withdrawal(users: Sequence[str], folder: Path) -> list[str]:
    """Return what becomes of the programs that use the old certificates of the workstation's users, in sentences.

    Args:
        users: the users whose old certificates are withdrawn.
        folder: the federation's.
    """
    unknown = [user for user in RESERVED if user not in users]
    sentences = [
        f"The old certificates of {', '.join(users)} are withdrawn: the broker refuses them as soon as it uses its new "
        "files.",
        "A running coordinator then loses its connection. It connects again by itself if it reads its files in "
        f"{folder / COORDINATOR}.",
        "Copy the new files to every other place with old ones, such as the coordinator of Ansible or Home Assistant.",
    ]
    missing = [f"No old certificate of {', '.join(unknown)} is known, so none is withdrawn."] if unknown else []
    return [*(sentences if users else []), *missing]
