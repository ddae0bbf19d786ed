"""``fedquilt relay``: read the settings from options and configuration file, and run the relay of a site."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from fedquilt_client.cli import default_state
from fedquilt_client.site_relay import RelaySettings, SiteRelay
from fedquilt_common.experiment.agent_config import merge_config
from fedquilt_common.experiment.relay_config import RelayConfig
from fedquilt_common.process.malloc import return_freed_memory
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.process.watchdog import CountedStop, report_liveness
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, parse_broker_url
from fedquilt_common.wire.client_id import agent_client_id, keep_suffix
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Deliver, Transport, Will

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

_REQUIRED: Final = "Required, here or in --config."


@app.callback()
def group() -> None:
    """Keep ``relay`` a sub-command."""


@app.command()
def relay(
    broker: Annotated[
        str | None, typer.Option(help=f"The site's broker: mqtt://host[:port] or mqtts://... {_REQUIRED}")
    ] = None,
    site: Annotated[str | None, typer.Option(help=f"Site whose boards it serves. {_REQUIRED}")] = None,
    id: Annotated[
        str | None, typer.Option(help="Name of this relay, unique in its federation.", show_default="SITE-relay")
    ] = None,
    federation: Annotated[str | None, typer.Option(help="Name space at the broker.", show_default="default")] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the data that must survive a restart.",
            show_default="$STATE_DIRECTORY, else ~/.local/state/fedquilt/ID",
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(help="CA certificates (PEM) to verify the broker with.", show_default="those of the system"),
    ] = None,
    cert: Annotated[str | None, typer.Option(help="Client certificate (PEM) for the broker.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the client certificate (PEM).")] = None,
    once: Annotated[
        bool | None, typer.Option("--once", help="Exit when the run has ended.", show_default="wait for the next run")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with the same keys and `boards`, the clients of each board; options override it."),
    ] = None,
) -> None:
    """Add up the replies of the boards behind a site's broker, so that one reply for all crosses the line.

    Runs until you stop it. `fedquilt federation broker --site NAME --relay` writes its certificate and configuration.
    """
    options = {k: v for k, v in locals().items() if k != "config" and v is not None}
    settings = merge_config(RelayConfig, "relay", config, options)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    address = parse_broker_url(settings.broker).with_files(settings.ca, settings.cert, settings.key)
    address = address.with_password(os.environ.get(BROKER_PASSWORD, ""))
    own = _relay_settings(settings)
    transports: list[Transport] = []

    def transport(deliver: Deliver, will: Will) -> Transport:
        client_id = agent_client_id(own.federation, own.name, keep_suffix(own.state))
        transports.append(MqttTransport(address, client_id, deliver, will=will))
        return transports[-1]

    return_freed_memory()
    stop = StopSignal()
    turns = CountedStop(stop)
    with report_liveness(lambda: (turns.count, [each.bytes_sent for each in transports])):
        SiteRelay(own, transport).execute(turns)
    raise typer.Exit(stop.exit_code)


def _relay_settings(config: RelayConfig) -> RelaySettings:
    return RelaySettings(
        name=config.name,
        site=config.site,
        state=config.state or default_state(config.name),
        federation=config.federation,
        owners=config.owners,
        once=config.once,
    )


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt relay``."""
    app(arguments, prog_name="fedquilt")
