"""Print how the files of a site reach its broker."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.site_files import RELAY, RELAY_CONFIG


def print_site(federation: Federation, site: str, folder_option: str) -> None:
    """Print where a site's files are, and the commands that come next.

    Args:
        federation: the federation.
        site: its name.
        folder_option: option that names the federation's folder, with a space before it; empty for the usual folder.
    """
    record, files = federation.record, federation.site_folder(site)
    behind = len(record.boards_behind(site))
    typer.echo(f"The broker of the site {site!r} is {record.sites[site].url}; {behind} boards are behind it.")
    typer.echo(f"Its bridge connects to {record.url}. Its files are in {files}.")
    typer.echo("Next:")
    typer.echo(f"  fedquilt provision BOARD --kind pi4 --site {site}{folder_option}")
    typer.echo("On the site's machine, with the files in /etc/mosquitto/fedquilt and mosquitto-tls.conf in")
    typer.echo("/etc/mosquitto/conf.d:")
    typer.echo("  sudo systemctl restart mosquitto")
    if (relay := record.sites[site].relay) is not None:
        typer.echo(f"On the same machine or another one at the site, with the files in {files / RELAY}:")
        typer.echo(f"  fedquilt relay --config {RELAY_CONFIG}    # {relay.name}: one reply for all boards")
    typer.echo("To check the line from there, run")
    typer.echo(f"  fedquilt doctor --broker {record.url} --federation {record.name} \\")
    typer.echo("    --ca ca.crt --cert bridge.crt --key bridge.key")


def note_sites(federation: Federation, boards: Iterable[str]) -> None:
    """Print which sites need new files because of a change of these boards."""
    record = federation.record
    for site in sorted({record.boards[name].site for name in boards} - {""}):
        typer.echo(
            f"The broker of the site {site} needs new files: copy mosquitto-tls.conf, acl and revoked.crl from "
            f"{federation.site_folder(site)} to it, and restart it."
        )
        if record.sites[site].relay is not None:
            typer.echo(f"Its relay needs its new {RELAY}/{RELAY_CONFIG}, too, and a restart.")


def note_relay(federation: Federation, site: str) -> None:
    """Print what a site that has boards already needs after its relay was added or taken away."""
    typer.echo(
        f"If the site's broker runs already, copy mosquitto-tls.conf, acl and revoked.crl from "
        f"{federation.site_folder(site)} to it again, and restart it, between two runs: until then the central broker "
        "refuses the replies of its boards."
    )
