"""``fedquilt doctor``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from fedquilt_common.doctor.broker import broker_checks
from fedquilt_common.doctor.check import Check
from fedquilt_common.doctor.machine import machine_checks
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import read_agent_config
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
UNWELL: Final = 10
"""Exit code where a check fails."""
ON_BOARD: Final = Path("/etc/fedquilt/agent.yaml")
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@app.callback()
def group() -> None:
    """Keep ``doctor`` a sub-command."""


@app.command()
def doctor(
    broker: Annotated[
        str | None, typer.Option(help="mqtt://host[:port] or mqtts://...; else that of --config.")
    ] = None,
    federation: Annotated[str | None, typer.Option(help="Name space at the broker.")] = None,
    ca: Annotated[str, typer.Option(help="CA certificates (PEM) to verify the broker with.")] = "",
    cert: Annotated[str, typer.Option(help="Client certificate (PEM).")] = "",
    key: Annotated[str, typer.Option(help="Key of the client certificate (PEM).")] = "",
    config: Annotated[
        Path | None, typer.Option(help=f"An agent's configuration; else {ON_BOARD}, if it is there.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at all that a run needs on this machine, and say what to do where something is missing.

    Exit code 10: something fails that must be mended first.
    """
    known = _known(config)
    options = {"broker": broker, "federation": federation, "ca": ca, "cert": cert, "key": key}
    known |= {name: value for name, value in options.items() if value}
    address = _address(known)
    checks = broker_checks(address, str(known.get("federation", "default"))) if address else [_no_broker()]
    checks += machine_checks(Path(str(known.get("state") or ".")), address.host if address else None)
    if json_:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    raise typer.Exit(UNWELL if any(check.state == "fail" for check in checks) else 0)


def _known(config: Path | None) -> dict[str, Any]:
    path = config or (ON_BOARD if os.access(ON_BOARD, os.R_OK) else None)
    return read_agent_config(path) if path else {}


def _address(known: dict[str, Any]) -> BrokerAddress | None:
    if not known.get("broker"):
        return None
    address = parse_broker_url(str(known["broker"]))
    files = [str(known.get(name) or "") for name in ("ca", "cert", "key")]
    if any(files) and not address.tls:
        raise ExperimentError(f"--ca, --cert and --key need an mqtts:// address, not {address}")
    return (address.with_files(*files) if any(files) else address).with_password(os.environ.get(BROKER_PASSWORD, ""))


def _no_broker() -> Check:
    return Check("broker", "warn", "not looked for", "Name it with --broker, or an agent's file with --config")


def _print(checks: list[Check]) -> None:
    console, width = Console(soft_wrap=True), max(len(check.name) for check in checks)
    for check in checks:
        colour = _COLOURS[check.state]
        console.print(f"[{colour}]{check.state:<4}[/] {check.name:<{width}}  {escape(check.said)}", highlight=False)
        if check.advice:
            console.print(f"     {'':<{width}}  {escape(check.advice)}", highlight=False)


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt doctor``."""
    app(arguments, prog_name="fedquilt")
