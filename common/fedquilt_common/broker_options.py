"""Options with which commands find the broker and the federation, and present themselves to it."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer

from fedquilt_common.errors import ExperimentError, ProtocolError
from fedquilt_common.wire.topics import check_name

_FederationName = TypeVar("_FederationName", str, str | None)


def check_federation(name: _FederationName) -> _FederationName:
    """Return the name of a federation as it is given with ``--federation``; None if it is not given.

    Raises:
        ExperimentError: it cannot be used in a topic.
    """
    try:
        if name is not None:
            check_name(name, "federation")
    except ProtocolError as error:
        raise ExperimentError(f"--federation: {error}") from None
    return name


BrokerCaOption = Annotated[str, typer.Option(help="CA certificates (PEM) to verify the broker with.")]
BrokerCertOption = Annotated[str, typer.Option(help="Client certificate (PEM).")]
BrokerKeyOption = Annotated[str, typer.Option(help="Key of the client certificate (PEM).")]
ServedFederationOption = Annotated[str, typer.Option(help="Name space at the broker.", callback=check_federation)]
