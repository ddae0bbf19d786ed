"""Print how the files of a site reach its broker and its relay."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Final

import typer

from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.inventory import site_host
from fedquilt_server.provisioning.owners import INVENTORY
from fedquilt_server.provisioning.record import FederationRecord
from fedquilt_server.provisioning.site_files import RELAY, RELAY_CONFIG

RELAY_SERVICE: Final = "fedquilt-relay"
"""The relay's service of systemd, as in deploy/systemd."""


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
    typer.echo("To install the site with Ansible, run in the folder ansible")
    typer.echo(f"  {playbook_command(federation, site)}")
    typer.echo("Or by hand: on the site's machine, with the files in /etc/mosquitto/fedquilt and mosquitto-tls.conf in")
    typer.echo("/etc/mosquitto/conf.d:")
    typer.echo("  sudo systemctl restart mosquitto")
    if (relay := record.sites[site].relay) is not None:
        typer.echo(f"On the same machine or another one at the site, with the files in {files / RELAY}:")
        typer.echo(f"  fedquilt relay --config {RELAY_CONFIG}    # {relay.name}: one reply for all boards")
    typer.echo("To check the line from there, run")
    typer.echo(f"  fedquilt doctor --broker {record.url} --federation {record.name} \\")
    typer.echo("    --ca ca.crt --cert bridge.crt --key bridge.key")


def playbook_command(federation: Federation, site: str) -> str:
    """Return the command with which Ansible installs a site's broker and its relay, or their new files."""
    relay = federation.record.sites[site].relay
    hosts = [site_host(site)] if relay is None else [site_host(site), relay.name]
    inventory = (federation.folder / INVENTORY).absolute()
    return f"ansible-playbook site.yml --inventory {shlex.quote(str(inventory))} --limit {','.join(hosts)}"


def note_sites(federation: Federation, boards: Collection[str], before: FederationRecord | None = None) -> None:
    """Print what the sites of these boards need because of a change of these boards.

    Args:
        federation: the federation.
        boards: names of the boards.
        before: the record before the change, if a board may have moved from another site.
    """
    records = [federation.record] if before is None else [federation.record, before]
    sites = {record.boards[name].site for record in records for name in boards if name in record.boards}
    for site in sorted(sites - {""}):
        _note_new_files(federation, site, has_relay=federation.record.sites[site].relay is not None)


def note_all_sites(federation: Federation) -> None:
    """Print what the broker of each site needs because of certificates of the workstation that are withdrawn."""
    for site in sorted(federation.record.sites):
        _note_new_files(federation, site, has_relay=False)


def _note_new_files(federation: Federation, site: str, *, has_relay: bool) -> None:
    """Print how a site gets its new files: with one command of Ansible, or what to copy and to restart."""
    files = federation.site_folder(site)
    need = "and its relay need" if has_relay else "needs"
    typer.echo(f"The broker of the site {site} {need} new files. Run in the folder ansible")
    typer.echo(f"  {playbook_command(federation, site)}")
    typer.echo(f"Or copy mosquitto-tls.conf, acl and revoked.crl from {files} to the broker, and run there")
    typer.echo("  sudo systemctl restart mosquitto")
    if has_relay:
        typer.echo(f"Then copy {files / RELAY / RELAY_CONFIG} to the relay, and run there")
        typer.echo(f"  sudo systemctl restart {RELAY_SERVICE}")


def note_relay() -> None:
    """Print what a site that has boards already needs after its relay was added or taken away."""
    typer.echo(
        "If the site's broker runs already, install its new files as above, between two runs: until then the central "
        "broker refuses the replies of its boards."
    )
