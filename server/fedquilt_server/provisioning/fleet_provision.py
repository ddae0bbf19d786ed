"""Give every board of a list its identity; boards that have one keep it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import typer

from fedquilt_common.errors import FederationError
from fedquilt_server.provisioning.board_list import ListedBoard, check_boards, read_boards, read_networks
from fedquilt_server.provisioning.board_plan import BoardRequest, complete_request, make_config
from fedquilt_server.provisioning.card import Wifi
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.record import BoardRecord

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
    added = {board.request.name for board in new}
    for name, wifi in networks.items():
        if name not in added and federation.keep_wifi(name, wifi):
            changes[name] = "network"
    made, reloaded = provision_each(federation, [board.request for board in new], days, settings, networks=networks)
    return FleetChanges({**changes, **dict.fromkeys(made, "added")}, reloaded)


def provision_each(
    federation: Federation,
    requests: Iterable[BoardRequest],
    days: int,
    settings: Mapping[str, Any],
    *,
    renew: bool = False,
    networks: Mapping[str, Wifi] = MappingProxyType({}),
) -> tuple[dict[str, BoardRecord], str]:
    """Provision boards one after the other, and make the broker use the new files. An error names those that are done.

    Args:
        federation: the federation.
        requests: the boards.
        days: validity of their certificates.
        settings: further keys of each ``agent.yaml``.
        renew: replace the identities of boards that have one.
        networks: wireless networks by board.

    Returns:
        The record of each board, and what the broker did; empty without a board.

    Raises:
        ExperimentError: a setting is not valid.
        FederationError: a board cannot be provisioned, or the broker cannot be reloaded.
    """
    made: dict[str, BoardRecord] = {}
    try:
        _make_each(federation, requests, made, networks, days=days, renew=renew, **settings)
        return made, federation.reload() if made else ""
    except BaseException:
        if made:
            typer.echo(f"Note: These boards got an identity: {', '.join(made)}.", err=True)
        raise


def _make_each(
    federation: Federation,
    requests: Iterable[BoardRequest],
    made: dict[str, BoardRecord],
    networks: Mapping[str, Wifi],
    **settings: Any,
) -> None:
    """Add the record of each board to ``made``. If a board fails, the broker still gets to know those before it."""
    try:
        for asked in requests:
            name = asked.name
            made[name] = federation.provision(name, asked.kind, asked.clients, asked.host, asked.user, **settings)
            if name in networks:
                federation.keep_wifi(name, networks[name])
    except BaseException:
        if made:
            with suppress(FederationError):  # the error of the board is shown
                federation.reload()
        raise


def _check_settings(federation: Federation, new: list[ListedBoard], settings: dict[str, Any]) -> None:
    """Check the settings that all new boards share, with the first of them.

    Raises:
        ExperimentError: a setting is not valid.
    """
    record = federation.record
    for board in new[:1]:
        make_config(record, complete_request(record, board.request), settings)
