"""``fedquilt relay``: read the settings from options and configuration file, and run the relay of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt_client import options
from fedquilt_client.process import begin_process, run_participant
from fedquilt_client.settings import default_state
from fedquilt_client.site_relay import RelaySettings, SiteRelay
from fedquilt_common.command_app import CommandApp
from fedquilt_common.experiment.agent_config import merge_config
from fedquilt_common.experiment.relay_config import RelayConfig

SiteBrokerOption = Annotated[
    str | None, typer.Option(help=f"The site's broker: mqtt://host[:port] or mqtts://... {options.REQUIRED}")
]
ServedSiteOption = Annotated[str | None, typer.Option(help=f"Site whose boards it serves. {options.REQUIRED}")]
RelayIdOption = Annotated[
    str | None, typer.Option(help="Name of this relay, unique in its federation.", show_default="SITE-relay")
]
RelayFileOption = Annotated[
    Path | None,
    typer.Option(help="YAML file with the same keys and `boards`, the clients of each board; options override it."),
]

app = CommandApp()


@app.callback()
def group() -> None:
    """Keep ``relay`` a sub-command."""


@app.command()
def relay(
    broker: SiteBrokerOption = None,
    site: ServedSiteOption = None,
    id: RelayIdOption = None,
    federation: options.FederationOption = None,
    state: options.OwnStateOption = None,
    ca: options.CaOption = None,
    cert: options.CertOption = None,
    key: options.KeyOption = None,
    once: options.OnceOption = None,
    config: RelayFileOption = None,
) -> None:
    """Add up the replies of the boards behind a site's broker, so that one reply for all crosses the line.

    Runs until you stop it. `fedquilt federation broker --site NAME --relay` writes its certificate and configuration.
    """
    given = {k: v for k, v in locals().items() if k != "config" and v is not None}
    settings = merge_config(RelayConfig, "relay", config, given)
    address, own = begin_process(settings), _relay_settings(settings)
    raise typer.Exit(run_participant(own, address, lambda connect, _: SiteRelay(own, connect)))


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
