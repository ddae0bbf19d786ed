"""Options with which commands find the broker and the federation, and present themselves to it."""

from __future__ import annotations

from typing import Annotated

import typer

BrokerCaOption = Annotated[str, typer.Option(help="CA certificates (PEM) to verify the broker with.")]
BrokerCertOption = Annotated[str, typer.Option(help="Client certificate (PEM).")]
BrokerKeyOption = Annotated[str, typer.Option(help="Key of the client certificate (PEM).")]
ServedFederationOption = Annotated[str, typer.Option(help="Name space at the broker.")]
