"""The command ``fedquilt doctor``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from fedquilt_common.broker_options import BrokerCaOption, BrokerCertOption, BrokerKeyOption, check_federation
from fedquilt_common.command_app import CommandApp
from fedquilt_common.doctor.agent import check_agent, check_way_to_broker
from fedquilt_common.doctor.check import Check
from fedquilt_common.doctor.machine import check_machine
from fedquilt_common.doctor.relay import check_relay, is_relay
from fedquilt_common.doctor.settings import read_address
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import read_agent_config
from fedquilt_common.terminal import make_console
from fedquilt_common.terminal_text import printable

app = CommandApp(no_args_is_help=False)
CHECK_FAILED: Final = 10
"""Exit code if a check fails."""
INSTALLED: Final = {
    Path("/etc/fedquilt/agent.yaml"): Path("/var/lib/fedquilt"),
    Path("/etc/fedquilt/relay/relay.yaml"): Path("/var/lib/fedquilt-relay"),
}
"""Configurations of the services of systemd, with their states. The first that exists is used if no other is given."""
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@app.callback()
def group() -> None:
    """Keep ``doctor`` a sub-command."""


@app.command()
def doctor(
    broker: Annotated[
        str | None, typer.Option(help="mqtt://host[:port] or mqtts://host[:port]. Default: that of --config.")
    ] = None,
    federation: Annotated[
        str | None,
        typer.Option(help="Name space at the broker. Default: that of --config.", callback=check_federation),
    ] = None,
    ca: BrokerCaOption = "",
    cert: BrokerCertOption = "",
    key: BrokerKeyOption = "",
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration of an agent or of a site's relay. Default: that of this machine's service."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that this machine has everything that a run needs, and print what to do where it does not.

    Exit code 10: a check fails, so that a run cannot work.
    """
    path = config or next((found for found in INSTALLED if os.access(found, os.R_OK)), None)
    settings = read_agent_config(path) if path else {}
    options = {"broker": broker, "federation": federation, "ca": ca, "cert": cert, "key": key}
    settings |= {name: value for name, value in options.items() if value}
    checks = _check_role(settings, path)
    checks += check_machine(_state_folder(settings, path), _broker_host(settings), trains=not is_relay(settings))
    if json_:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    raise typer.Exit(CHECK_FAILED if any(check.state == "fail" for check in checks) else 0)


def _check_role(settings: dict[str, Any], config: Path | None) -> list[Check]:
    """Check what a relay, an agent or a machine without a configuration file needs."""
    if is_relay(settings):
        return check_relay(settings)
    if config is not None:
        return check_agent(settings)
    return check_way_to_broker(read_address(settings), str(settings.get("federation", "default")), "")


def _broker_host(settings: dict[str, Any]) -> str | None:
    try:
        address = read_address(settings)
    except ExperimentError:  # another check reports it
        return None
    return None if address is None else address.host


def _state_folder(settings: dict[str, Any], config: Path | None) -> Path:
    """Return the folder that needs room on the disk: what is given, that of the service, or the current one."""
    installed = INSTALLED.get(config) if config is not None else None
    return Path(str(settings.get("state") or installed or "."))


def _print(checks: list[Check]) -> None:
    console, width = make_console(soft_wrap=True), max(len(check.name) for check in checks)
    for check in checks:
        found = printable(f" {check.name:<{width}}  {check.said}")
        console.print(Text.assemble((f"{check.state:<4}", _COLOURS[check.state]), found), highlight=False)
        if check.advice:
            console.print(Text(printable(f"     {'':<{width}}  {check.advice}")), highlight=False)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt doctor`` with ``arguments``."""
    app(arguments, prog_name="fedquilt")
