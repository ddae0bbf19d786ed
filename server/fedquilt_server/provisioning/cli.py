"""The commands ``fedquilt federation``, ``provision`` and ``revoke``."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import FederationError, FolderInUseError
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.wire.mosquitto_version import can_reload, name_version
from fedquilt_server.provisioning.announce import announcer, keep_announced
from fedquilt_server.provisioning.board_plan import BoardRequest
from fedquilt_server.provisioning.board_rows import board_row, kind_label
from fedquilt_server.provisioning.broker_files import required_files
from fedquilt_server.provisioning.broker_process import check_port, find_running_broker, program_version, run_broker
from fedquilt_server.provisioning.federation import DAYS, Federation, make_federation
from fedquilt_server.provisioning.fleet_provision import provision_boards, provision_each
from fedquilt_server.provisioning.kinds import KINDS, kind_of
from fedquilt_server.provisioning.names import broker_name
from fedquilt_server.provisioning.options import (
    BrokerAnnounceOption,
    BrokerDaysOption,
    BrokerHostsOption,
    BrokerPortOption,
    BrokerRelayOption,
    BrokerRenewOption,
    BrokerSiteOption,
    ProvisionBoardOption,
    ProvisionBudgetOption,
    ProvisionClientsOption,
    ProvisionFromOption,
    ProvisionHostOption,
    ProvisionKindOption,
    ProvisionMaxDeltaOption,
    ProvisionMaxEpsilonOption,
    ProvisionPowerCommandOption,
    ProvisionPowerTopicOption,
    ProvisionProfileOption,
    ProvisionRenewOption,
    ProvisionSiteOption,
    ProvisionThreadsOption,
    ProvisionUserOption,
    ProvisionWorkersOption,
)
from fedquilt_server.provisioning.owners import INVENTORY
from fedquilt_server.provisioning.record import BoardRecord
from fedquilt_server.provisioning.renewal import boards_elsewhere, certificate_ends
from fedquilt_server.provisioning.renewal_report import print_renewal, renewal_row
from fedquilt_server.provisioning.site_steps import note_relay, note_sites, print_site
from fedquilt_server.simulate.mosquitto import find_mosquitto

app = CommandApp()
group = CommandApp(help="Create a federation, renew its certificates, and run its broker.")
app.add_typer(group, name="federation")

FOLDER_VARIABLE = "FEDQUILT_FEDERATION"
Folder = Annotated[
    Path, typer.Option("--folder", envvar=FOLDER_VARIABLE, help="Folder of the federation. It holds all its keys.")
]
JsonFederation = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Days = Annotated[int, typer.Option(min=1, max=7300, help="Validity of the certificate in days.")]
HERE = Path("federation")


@group.command()
def init(
    folder: Folder = HERE,
    name: Annotated[str, typer.Option(help="Name of the federation; a level of its topics.")] = "default",
    broker: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the broker's machine; repeatable. Boards use the first one."),
    ] = None,
    mdns: Annotated[
        bool, typer.Option("--mdns", help="Boards find the broker by mDNS, even when its address changes.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The broker's port.")] = 8883,
    reload: Annotated[
        str, typer.Option(help="Command that makes a broker elsewhere use its new files, for example by a restart.")
    ] = "",
    json_: JsonFederation = False,
) -> None:
    """Create a certificate authority, the broker's TLS configuration and ACL, and the workstation's identities."""
    hosts = [*([broker_name(name)] if mdns else []), *(broker or own_hosts())]
    federation = make_federation(folder, name, hosts, port, reload)
    record = federation.record
    if json_:
        typer.echo(json.dumps({"folder": str(folder), "federation": name, "broker": record.url, "hosts": record.hosts}))
        return
    typer.echo(f"Created the federation {name!r} in {folder}. Boards connect to the broker at {record.url}")
    typer.echo(
        f"Its certificate is for {', '.join(record.hosts)}; `fedquilt federation renew --broker NAME` changes that."
    )
    typer.echo("Next:")
    where = _folder_option(folder)
    typer.echo(f"  fedquilt federation broker{where}          to run the broker here, or install one with Ansible")
    typer.echo(f"  fedquilt provision BOARD --kind pi4{where}")
    typer.echo(f"  fedquilt coordinator EXPERIMENT.yaml {shlex.join(coordinator_options(federation))}")


def coordinator_options(federation: Federation) -> list[str]:
    """Return the options with which a coordinator on the broker's machine connects."""
    record, identity = federation.record, federation.folder / "coordinator"
    return [
        "--broker", f"mqtts://localhost:{record.port}", "--federation", record.name,
        "--ca", str(identity / "ca.crt"), "--cert", str(identity / "tls.crt"), "--key", str(identity / "tls.key"),
    ]  # fmt: skip


def own_hosts() -> list[str]:
    """List the IPv4 addresses and the host name of this machine, for boards: addresses first."""
    name = socket.gethostname()
    return list(dict.fromkeys([*own_addresses(), name, name if "." in name else f"{name}.local"]))


def own_addresses() -> list[str]:
    """List the IPv4 addresses of this machine that boards may reach."""
    return [
        address.address
        for name, interface in psutil.net_if_addrs().items()
        for address in interface
        if address.family == socket.AF_INET and name not in ("lo", "lo0") and not name.startswith(("docker", "br-"))
    ]


@group.command()
def renew(
    folder: Folder = HERE,
    broker: Annotated[list[str] | None, typer.Option(help="New name or address of the broker; repeatable.")] = None,
    days: Days = DAYS,
    reload: Annotated[str | None, typer.Option(help="New command that makes the broker use its new files.")] = None,
    json_: JsonFederation = False,
) -> None:
    """Renew the certificates of the broker and of the workstation, and withdraw the workstation's old ones.

    Run it after a change of address, or if a key of the workstation (coordinator, watch, homeassistant) was stolen.
    Boards keep their certificates. If the broker's first address changes, run `provision --renew` for each board.
    """
    federation = Federation(folder)
    federation.renew(broker or (), days, reload)
    try:
        reloaded = federation.reload(restart=True)
    finally:  # the certificates are new even if it fails
        ends, elsewhere = certificate_ends(federation), boards_elsewhere(federation)
        for why in filter(None, elsewhere.values()):
            typer.echo(f"Note: {why}", err=True)
        if not json_:
            print_renewal(federation, ends, list(elsewhere))
    if json_:
        typer.echo(json.dumps({**renewal_row(federation, ends, list(elsewhere)), "reload": reloaded}))
    else:
        typer.echo(f"{reloaded}.")


@group.command()
def broker(
    folder: Folder = HERE,
    announce: BrokerAnnounceOption = False,
    site: BrokerSiteOption = "",
    broker: BrokerHostsOption = None,
    port: BrokerPortOption = None,
    renew: BrokerRenewOption = False,
    days: BrokerDaysOption = None,
    relay: BrokerRelayOption = None,
) -> None:
    """Run the federation's broker in the foreground, with TLS and ACL. Press Ctrl-C to stop it.

    SIGHUP restarts it. `renew` restarts it too; `provision` and `revoke` do so if its version cannot reload its files.
    With --site, the command writes the files of another broker instead, to run at the site.
    """
    federation = Federation(folder)
    if site:
        federation.add_site(site, broker or (), port, days or DAYS, renew=renew, relay=relay)
        print_site(federation, site, _folder_option(folder))
        if relay is not None:
            note_relay()
        typer.echo(f"{federation.reload()}.")
        return
    if broker or port or renew or days or relay is not None:
        raise typer.BadParameter(
            "--broker, --port, --renew, --days and --relay describe the broker of a site: name it with --site"
        )
    raise typer.Exit(128 + _run_broker(federation, announce=announce))


def _run_broker(federation: Federation, *, announce: bool) -> int:
    """Run the federation's broker until a signal, whose number it returns.

    Raises:
        FolderInUseError: the broker is running already.
        BrokerFailedError: another program uses its port, or it does not start.
        FederationError: a file of the broker is missing.
    """
    folder = federation.broker_folder
    running = find_running_broker(folder)
    if running is not None:
        raise FolderInUseError(f"the broker of {federation.folder} is already running: {running.process}")
    check_port(federation.record.port)
    federation.write_broker_config()  # the folder may have been moved
    if missing := [path for path in required_files(folder) if not path.exists()]:
        raise FederationError(f"{missing[0]} is missing: `fedquilt federation renew` writes it again")
    program = str(find_mosquitto())
    version = program_version(program)
    how = "reload it" if can_reload(version) else "restart it, because a reload can crash this version"
    print(f"Boards connect at {federation.record.url}", file=sys.stderr)
    print(f"This is {name_version(version)}: `provision` and `revoke` {how}", file=sys.stderr)
    with announcer(federation.folder) if announce else nullcontext():
        return run_broker([program, "-c", str(folder / "mosquitto.conf")], folder)


@group.command("announce")
def announce_broker(folder: Folder = HERE) -> None:
    """Announce this machine's broker with mDNS in the foreground. Press Ctrl-C to stop.

    Boards find the broker by a name that stays when its address changes. Needs fedquilt[mdns].
    """
    record = Federation(folder).record
    print(f"Announcing the broker as {broker_name(record.name)}", file=sys.stderr)
    stop = StopSignal()
    keep_announced(record, own_addresses, stop)
    raise typer.Exit(stop.exit_code)


@app.command()
def provision(
    board: ProvisionBoardOption = None,
    from_: ProvisionFromOption = None,
    kind: ProvisionKindOption = "",
    folder: Folder = HERE,
    clients: ProvisionClientsOption = "",
    host: ProvisionHostOption = "",
    user: ProvisionUserOption = "",
    site: ProvisionSiteOption = None,
    days: Days = DAYS,
    workers: ProvisionWorkersOption = None,
    threads: ProvisionThreadsOption = None,
    budget: ProvisionBudgetOption = None,
    profile: ProvisionProfileOption = None,
    max_epsilon: ProvisionMaxEpsilonOption = None,
    max_delta: ProvisionMaxDeltaOption = None,
    power_command: ProvisionPowerCommandOption = None,
    power_topic: ProvisionPowerTopicOption = None,
    renew: ProvisionRenewOption = False,
    json_: JsonFederation = False,
) -> None:
    """Give a board an identity: certificate, agent configuration and an inventory entry.

    With --from, each line of the file is a board. The command adds the boards that are new, and changes no other one.
    """
    federation = Federation(folder)
    options = {
        "workers": workers, "threads": threads, "profile": profile, "budget": budget, "power_command": power_command,
        "power_topic": power_topic, "max_epsilon": max_epsilon, "max_delta": max_delta, "site": site,
    }  # fmt: skip
    settings = {key: value for key, value in options.items() if value is not None}
    if from_ is not None:
        if board or kind or clients or host or user or renew:
            raise typer.BadParameter("--from takes names, kinds, clients, hosts and users from the file only")
        _provision_list(federation, from_, days, settings, json_)
        return
    if not board:
        raise typer.BadParameter("name a board, or give a list with --from")
    _check_boards(federation, board, kind, clients, host)
    before, requests = federation.record, [BoardRequest(name, kind, clients, host, user) for name in board]
    made, reloaded = provision_each(federation, requests, days, settings, renew=renew)
    _note_kinds({kind} if kind else set())
    withdrawn = "The old certificate is withdrawn. " if renew else ""
    _print_boards(federation, made, f"{withdrawn}{reloaded}.", json_)
    if not json_:
        note_sites(federation, made, before)


def _print_boards(federation: Federation, made: dict[str, BoardRecord], done: str, json_: bool) -> None:
    """Print the boards that have been provisioned, and what comes next."""
    if json_:
        rows = [{**board_row(name, made[name]), "folder": str(federation.board_folder(name))} for name in made]
        typer.echo(json.dumps(rows[0] if len(rows) == 1 else rows))
        return
    for name, record in made.items():
        _print_board(name, record, federation.board_folder(name))
    _print_next(federation.folder, made)
    typer.echo(done)


def _check_boards(federation: Federation, boards: list[str], kind: str, clients: str, host: str) -> None:
    """Check that the options fit the boards.

    Raises:
        FederationError: a board is given twice, or an option is for one board only, or is missing.
    """
    if twice := [name for name, number in Counter(boards).items() if number > 1]:
        raise FederationError(f"{twice[0]!r} is given twice: name each board once")
    if len(boards) > 1 and (clients or host):
        raise FederationError("--clients and --host are for one board: run the command once for each board")
    if not kind and (new := [name for name in boards if name not in federation.record.boards]):
        kinds = ", ".join(KINDS)
        raise FederationError(f"--kind is missing: use one of {kinds}, or your own word for the kind of {new[0]}")


def _note_kinds(kinds: set[str]) -> None:
    """Note kinds that are not in the table."""
    for kind in sorted(kinds - set(KINDS)):
        note = f"Note: {kind!r} is treated as a plain Linux board. The supported kinds are {', '.join(KINDS)}."
        typer.echo(note, err=True)


def _provision_list(federation: Federation, path: Path, days: int, settings: dict[str, Any], as_json: bool) -> None:
    """Provision the boards of a list, and print what changed."""
    done = provision_boards(federation, path, days, settings)
    boards = federation.record.boards
    if as_json:
        rows = [
            {**board_row(name, boards[name]), "folder": str(federation.board_folder(name)), "change": change}
            for name, change in done.changes.items()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    _note_kinds({boards[name].kind for name in done.added})
    for name, change in done.changes.items():
        if change != "unchanged":
            what = "new" if change == "added" else "has another wireless network: flash its card again"
            typer.echo(f"{name} ({kind_label(boards[name].kind)}, clients {boards[name].clients}): {what}")
    old = len(done.changes) - len(done.added)
    new = len(done.added)
    typer.echo(f"{new} {'board is' if new == 1 else 'boards are'} new, {old} had an identity before.")
    if done.added:
        where = _folder_option(federation.folder)
        typer.echo(f"{done.reloaded}. To prepare all cards, run `fedquilt flash IMAGE --all --out cards{where}`.")
        note_sites(federation, done.added)


def _print_board(name: str, record: BoardRecord, folder: Path) -> None:
    typer.echo(f"{name} ({kind_label(record.kind)}) hosts clients {record.clients}.")
    typer.echo(f"Its identity is valid until {record.until:%Y-%m-%d}. Its files are in {folder}.")


def _print_next(folder: Path, made: dict[str, BoardRecord]) -> None:
    """Print how the new files reach the boards."""
    typer.echo("To install them before a board's first start, run")
    for name, record in made.items():
        jetson = kind_of(record.kind).jetson
        target = f"--out {name}.tar.gz" if jetson else f"--out {name}.img"
        where = _folder_option(folder)
        typer.echo(f"  fedquilt flash{'' if jetson else ' IMAGE'} --board {name} {target}{where}")
    typer.echo("On a running board, install them with Ansible, or copy them and run")
    typer.echo("  fedquilt agent --config agent.yaml")


def _folder_option(folder: Path) -> str:
    """Return the option that names the folder in a command that we print; empty for the usual folder."""
    return "" if folder == HERE else f" --folder {shlex.quote(str(folder))}"


@app.command()
def revoke(
    board: Annotated[str, typer.Argument(help="Name of the board.")],
    folder: Folder = HERE,
    json_: JsonFederation = False,
) -> None:
    """Withdraw a board's certificate: the broker rejects the board, and the coordinator frees its clients."""
    federation = Federation(folder)
    reloaded = federation.revoke(board)
    if json_:
        typer.echo(json.dumps({**board_row(board, federation.board(board)), "broker": reloaded}))
        return
    typer.echo(f"{board} is revoked: its certificate and its access rights are withdrawn. {reloaded}.")
    typer.echo(f"A coordinator that reads {federation.folder / INVENTORY} frees its clients.")
    note_sites(federation, [board])


def run(arguments: list[str]) -> None:
    """Run these commands with the given arguments."""
    app(arguments, prog_name="fedquilt")
