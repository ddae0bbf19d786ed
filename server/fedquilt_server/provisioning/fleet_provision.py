"""Give every board of a list its identity; boards that have one keep it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedquilt_server.provisioning.board_list import ListedBoard, check_boards, read_boards, read_networks
from fedquilt_server.provisioning.board_plan import complete_request, make_config
from fedquilt_server.provisioning.federation import Federation

Change = Literal["added", "unchanged", "network"]
"""What became of a board: it got an identity, nothing, or another wireless network."""


@dataclass(frozen=True)
class FleetChanges:
    """What a list of boards changed.

    Args:
        changes: the change of each board, in the order of the list.
        reloaded: what the broker did; empty if no board was added.
    """

    changes: dict[str, Change]
    reloaded: str = ""

    @property
    def added(self) -> list[str]:
        """The boards that got an identity."""
        return [name for name, change in self.changes.items() if change == "added"]


def provision_boards(federation: Federation, path: Path, days: int, settings: dict[str, Any]) -> FleetChanges:
    """Give an identity to every board of a list that has none. Nothing is written before every line is checked.

    If it is interrupted, run it again: it adds the boards that are missing.

    Args:
        federation: the federation.
        path: the list of boards, in CSV.
        days: validity of the new certificates.
        settings: further keys of each new ``agent.yaml``.

    Raises:
        ExperimentError: the list or a setting cannot be used.
        FederationError: the federation cannot be read, or its broker cannot be reloaded.
    """
    boards = read_boards(path)
    new, networks = check_boards(federation.record, boards, path), read_networks(boards)
    _check_settings(federation, new, settings)
    changes: dict[str, Change] = {board.request.name: "unchanged" for board in boards}
    reloaded = ""
    try:
        for board in new:
            asked = board.request
            federation.provision(asked.name, asked.kind, asked.clients, asked.host, asked.user, days, **settings)
            changes[asked.name] = "added"
    finally:  # even for the boards before one that fails
        if "added" in changes.values():
            reloaded = federation.reload()
    for name, wifi in networks.items():
        if federation.keep_wifi(name, wifi) and changes[name] == "unchanged":
            changes[name] = "network"
    return FleetChanges(changes, reloaded)


def _check_settings(federation: Federation, new: list[ListedBoard], settings: dict[str, Any]) -> None:
    """Check the settings that all new boards share, with the first of them.

    Raises:
        ExperimentError: a setting is not valid.
    """
    record = federation.record
    for board in new[:1]:
        make_config(record, complete_request(record, board.request), settings)
