"""``fedquilt federation``, ``provision``, ``revoke`` and ``boards``."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from fedquilt_common.doctor.broker import WARN_DAYS
from fedquilt_common.errors import FederationError
from fedquilt_server.provisioning.broker_files import broker_files, running_broker
from fedquilt_server.provisioning.federation import DAYS, Federation, make_federation
from fedquilt_server.provisioning.kinds import KINDS
from fedquilt_server.provisioning.record import Board
from fedquilt_server.simulate.mosquitto import find_mosquitto

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
group = typer.Typer(no_args_is_help=True, help="Make a federation's certificates, broker files and ACL.")
app.add_typer(group, name="federation")

FOLDER_VARIABLE = "FEDQUILT_FEDERATION"
Folder = Annotated[
    Path, typer.Option("--folder", envvar=FOLDER_VARIABLE, help="The federation's folder, with all its secrets.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Days = Annotated[int, typer.Option(min=1, max=7300, help="Days for which the certificate is good.")]
HERE = Path("federation")


@group.command()
def init(
    folder: Folder = HERE,
    name: Annotated[str, typer.Option(help="Name of the federation, a level of its topics.")] = "default",
    broker: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the broker's machine; repeatable, boards use the first."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The broker's port.")] = 8883,
    reload: Annotated[
        str, typer.Option(help="Command that makes a broker elsewhere read its files again, after a revocation.")
    ] = "",
    json_: Json = False,
) -> None:
    """Make a certificate authority, the broker's TLS configuration and ACL, and identities of the workstation."""
    made = make_federation(folder, name, broker or own_hosts(), port, reload)
    record = made.record
    if json_:
        typer.echo(json.dumps({"folder": str(folder), "federation": name, "broker": record.url, "hosts": record.hosts}))
        return
    typer.echo(f"Made the federation {name!r} in {folder}. Boards will look for the broker at {record.url}")
    typer.echo(f"It is known as {', '.join(record.hosts)}; `fedquilt federation renew --broker NAME` changes that.")
    typer.echo("Next:")
    where = "" if folder == HERE else f" --folder {folder}"
    typer.echo(f"  fedquilt federation broker{where}          runs the broker here; or let Ansible install one")
    typer.echo(f"  fedquilt provision BOARD --kind pi4{where}")
    typer.echo(f"  fedquilt coordinator EXPERIMENT.yaml {' '.join(coordinator_options(made))}")


def coordinator_options(federation: Federation) -> list[str]:
    """With which a coordinator on the broker's machine connects."""
    record, own = federation.record, federation.folder / "coordinator"
    return [
        "--broker", f"mqtts://localhost:{record.port}", "--federation", record.name,
        "--ca", str(own / "ca.crt"), "--cert", str(own / "tls.crt"), "--key", str(own / "tls.key"),
    ]  # fmt: skip


def own_hosts() -> list[str]:
    """Names and addresses of this machine, as boards may know it; what others reach best comes first."""
    addresses = [
        address.address
        for name, given in psutil.net_if_addrs().items()
        for address in given
        if address.family == socket.AF_INET and name not in ("lo", "lo0") and not name.startswith(("docker", "br-"))
    ]
    name = socket.gethostname()
    return list(dict.fromkeys([*addresses, name, name if "." in name else f"{name}.local"]))


@group.command()
def renew(
    folder: Folder = HERE,
    broker: Annotated[
        list[str] | None, typer.Option(help="Names or addresses that the broker has now; repeatable.")
    ] = None,
    days: Days = DAYS,
    reload: Annotated[str | None, typer.Option(help="Command that makes the broker read its files again.")] = None,
) -> None:
    """New certificates for the broker and the workstation's own users, such as after a change of address.

    Boards keep theirs; those that look for another address than the first need `provision --renew`.
    """
    federation = Federation(folder)
    federation.renew(broker or (), days, reload)
    typer.echo(f"Start the broker anew. Boards that are provisioned from now on look for it at {federation.record.url}")


@group.command()
def broker(folder: Folder = HERE) -> None:
    """Run the federation's broker in the foreground, with TLS and ACL. Ctrl-C ends it."""
    federation = Federation(folder)
    print(f"Boards reach it at {federation.record.url}", file=sys.stderr)
    pid = running_broker(federation.broker_folder)
    if pid is not None:
        raise FederationError(f"the broker of {folder} runs already: process {pid}")
    federation.write_broker_config()  # the folder may have been moved
    if missing := [path for path in broker_files(federation.broker_folder) if not path.exists()]:
        raise FederationError(f"{missing[0]} is missing: `fedquilt federation renew` makes it anew")
    program = str(find_mosquitto())
    os.execv(program, [program, "-c", str(federation.broker_folder / "mosquitto.conf")])  # noqa: S606


@app.command()
def provision(
    board: Annotated[str, typer.Argument(help="Name of the board: of its certificate, agent and host.")],
    kind: Annotated[str, typer.Option(help=f"What it is, such as {', '.join(KINDS)}.")] = "",
    folder: Folder = HERE,
    clients: Annotated[str, typer.Option(help="Clients hosted there, such as 0-3; else the next free number.")] = "",
    host: Annotated[str, typer.Option(help="Where Ansible finds it; else BOARD.local.")] = "",
    user: Annotated[str, typer.Option(help="Who logs in there for Ansible; else what is usual for its kind.")] = "",
    days: Days = DAYS,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Training processes at a time.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of each of them.")] = None,
    budget: Annotated[str | None, typer.Option(help="Memory that training may take; else what is free.")] = None,
    profile: Annotated[str | None, typer.Option(help="open, or private: say nothing of the board's resources.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="A new certificate for a board that has one.")] = False,
    json_: Json = False,
) -> None:
    """Give a board an identity: certificate, agent configuration and an inventory entry."""
    federation = Federation(folder)
    given = {"workers": workers, "threads": threads, "profile": profile, "budget": budget}
    more = {key: value for key, value in given.items() if value is not None}
    again = board in federation.record.boards
    if not again and not kind:
        raise FederationError(f"--kind: say what {board} is, such as {', '.join(KINDS)}, or any word of your own")
    if kind and kind not in KINDS:
        typer.echo(f"Note: fedquilt knows nothing of the kind {kind!r}; it knows {', '.join(KINDS)}.", err=True)
    made = federation.provision(board, kind, clients, host, user, days, renew, **more)
    place = federation.board_folder(board)
    said = federation.reload() if again else ""
    if json_:
        typer.echo(json.dumps({**_row(board, made), "folder": str(place)}))
        return
    typer.echo(
        f"{board} ({_label(made.kind)}) hosts clients {made.clients}; its identity is good until {made.until:%Y-%m-%d}"
    )
    typer.echo(f"Its files are in {place}. Put them onto the board with `fedquilt flash IMAGE --board {board}` before")
    typer.echo("its first start, with Ansible once it runs, or by hand: fedquilt agent --config agent.yaml")
    if said:
        typer.echo(f"The old certificate is withdrawn. Now {said}.")


@app.command()
def revoke(
    board: Annotated[str, typer.Argument(help="Name of the board.")], folder: Folder = HERE, json_: Json = False
) -> None:
    """Withdraw a board's certificate, and make the broker turn it away from now on."""
    federation = Federation(folder)
    said = federation.revoke(board)
    if json_:
        typer.echo(json.dumps({**_row(board, federation.board(board)), "broker": said}))
        return
    typer.echo(f"{board} is revoked: its certificate and its rights are withdrawn. Now {said}.")


@app.command()
def boards(folder: Folder = HERE, json_: Json = False) -> None:
    """List the boards that have an identity, and until when."""
    rows = [_row(name, board) for name, board in sorted(Federation(folder).record.boards.items())]
    if json_:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table()
    for column in ("board", "kind", "clients", "host", "good until", "state"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        cells = [row["board"], _label(row["kind"]), row["clients"], row["host"], row["until"][:10], row["state"]]
        table.add_row(*cells)
    console = Console()
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)


def _row(name: str, board: Board) -> dict[str, Any]:
    said = board.model_dump(mode="json")
    return {"board": name, **said, "state": _state(board)}


def _state(board: Board) -> str:
    if board.revoked is not None:
        return "revoked"
    left = board.until - datetime.now(timezone.utc)
    return "expired" if left < timedelta() else "ends soon" if left < timedelta(days=WARN_DAYS) else "good"


def _label(kind: str) -> str:
    return KINDS[kind].label if kind in KINDS else kind


def run(arguments: list[str]) -> None:
    """Entry of these commands."""
    app(arguments, prog_name="fedquilt")
