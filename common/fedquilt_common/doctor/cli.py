"""The command ``fedquilt doctor``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from fedquilt_common.doctor.broker import check_broker
from fedquilt_common.doctor.check import Check
from fedquilt_common.doctor.machine import check_machine
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import read_agent_config
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
CHECK_FAILED: Final = 10
"""Exit code if a check fails."""
ON_BOARD: Final = Path("/etc/fedquilt/agent.yaml")
"""Configuration of a board's agent, used if it exists and no other is given."""
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@app.callback()
def group() -> None:
    """Keep ``doctor`` a sub-command."""


@app.command()
def doctor(
    broker: Annotated[
        str | None, typer.Option(help="mqtt://host[:port] or mqtts://host[:port]. Default: that of --config.")
    ] = None,
    federation: Annotated[str | None, typer.Option(help="Name space at the broker. Default: that of --config.")] = None,
    ca: Annotated[str, typer.Option(help="CA certificates (PEM) to verify the broker with.")] = "",
    cert: Annotated[str, typer.Option(help="Client certificate (PEM).")] = "",
    key: Annotated[str, typer.Option(help="Key of the client certificate (PEM).")] = "",
    config: Annotated[
        Path | None, typer.Option(help=f"An agent's configuration. Default: {ON_BOARD} if it exists.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that this machine has everything that a run needs, and print what to do where it does not.

    Exit code 10: a check fails, so that a run cannot work.
    """
    settings = _read_settings(config)
    options = {"broker": broker, "federation": federation, "ca": ca, "cert": cert, "key": key}
    settings |= {name: value for name, value in options.items() if value}
    address = _read_address(settings)
    checks = check_broker(address, str(settings.get("federation", "default"))) if address else [_skip_broker()]
    checks += check_machine(Path(str(settings.get("state") or ".")), address.host if address else None)
    if json_:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    raise typer.Exit(CHECK_FAILED if any(check.state == "fail" for check in checks) else 0)


def _read_settings(config: Path | None) -> dict[str, Any]:
    path = config or (ON_BOARD if os.access(ON_BOARD, os.R_OK) else None)
    return read_agent_config(path) if path else {}


def _read_address(settings: dict[str, Any]) -> BrokerAddress | None:
    if not settings.get("broker"):
        return None
    address = parse_broker_url(str(settings["broker"]))
    files = [str(settings.get(name) or "") for name in ("ca", "cert", "key")]
    if any(files) and not address.tls:
        raise ExperimentError(f"--ca, --cert and --key need an mqtts:// address, not {address}")
    return (address.with_files(*files) if any(files) else address).with_password(os.environ.get(BROKER_PASSWORD, ""))


def _skip_broker() -> Check:
    return Check("broker", "warn", "not checked", "Give its address with --broker, or an agent's file with --config")


def _print(checks: list[Check]) -> None:
    console, width = Console(soft_wrap=True), max(len(check.name) for check in checks)
    for check in checks:
        colour = _COLOURS[check.state]
        console.print(f"[{colour}]{check.state:<4}[/] {check.name:<{width}}  {escape(check.said)}", highlight=False)
        if check.advice:
            console.print(f"     {'':<{width}}  {escape(check.advice)}", highlight=False)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt doctor`` with ``arguments``."""
    app(arguments, prog_name="fedquilt")
