"""The configuration file of a site's relay, ``relay.yaml``, which the workstation writes and the relay reads."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import parse_clients
from fedquilt_common.experiment.section import Section
from fedquilt_common.wire.message_base import Name
from fedquilt_common.wire.topics import RELAY_SUFFIX


class RelayConfig(Section):
    """The keys of the file: the options of ``fedquilt relay``, and ``boards`` and ``central``.

    Args:
        central: URL of the central broker, which the doctor tries if the site is not connected to it; empty: unknown.
        boards: the clients of each board, such as 0-3; None: the first board that claims a client hosts it.
    """

    broker: str
    central: str = ""
    site: Name
    id: Name | None = None
    federation: Name = "default"
    state: Path | None = Field(default=None, strict=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    once: bool = False
    boards: dict[Name, str | int] | None = None

    @property
    def name(self) -> str:
        """Name of the relay's agent."""
        return self.id or f"{self.site}{RELAY_SUFFIX}"

    @property
    def owners(self) -> dict[int, str] | None:
        """The board of each client; None: any board may claim it.

        Raises:
            ExperimentError: clients are not valid, or two boards have the same.
        """
        if self.boards is None:
            return None
        owners: dict[int, str] = {}
        for board, text in self.boards.items():
            for client in parse_clients(str(text)):
                if owners.setdefault(client, board) != board:
                    raise ExperimentError(f"boards: client {client} belongs to {owners[client]} and to {board}")
        return owners
