"""Read from a federation's inventory its name, which board hosts each client, and which boards are revoked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from fedquilt_common.errors import ExperimentError, FederationError
from fedquilt_common.experiment.agent_config import parse_clients
from fedquilt_common.files.file_stamp import stamp
from fedquilt_common.files.yaml_text import MAX_OWN_CHARACTERS, load_yaml, read_text
from fedquilt_common.types import Assignments, ClientId
from fedquilt_common.wire.topics import COORDINATOR
from fedquilt_server.provisioning.inventory import CLIENTS_KEY, FEDERATION_KEY, RELAYS_KEY, REVOKED_KEY

log = logging.getLogger(__name__)
_Found = TypeVar("_Found")

INVENTORY: Final = "inventory.yml"


def find_inventory(certificate: str) -> Path | None:
    """Return the inventory of the federation to which the coordinator's certificate belongs; None without one.

    The certificate is ``FEDERATION/coordinator/tls.crt``, the inventory ``FEDERATION/inventory.yml``.
    """
    if not certificate:
        return None  # without asking for the working folder, which may be gone
    folder = Path(certificate).absolute().parent
    path = folder.parent / INVENTORY
    return path if folder.name == COORDINATOR and path.is_file() else None


class InventoryFile:
    """The inventory of a federation, read again when it changes.

    Raises:
        FederationError: the file cannot be read, or is not an inventory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = stamp(path)
        self._assignments = read_assignments(path)

    def assignments(self) -> Assignments:
        """Return what the inventory decides; the last valid assignments if the file has become unreadable."""
        found = stamp(self.path)
        if found != self._stamp:
            self._stamp = found
            try:
                self._assignments = read_assignments(self.path)
            except FederationError as error:
                log.warning("%s. The coordinator keeps the assignments that it has read before", error)
        return self._assignments


def read_assignments(path: Path) -> Assignments:
    """Return what an inventory decides about boards and clients.

    Raises:
        FederationError: the file cannot be read, is not an inventory, or assigns a client to two boards.
    """
    return _read(path, lambda groups: Assignments(_owners(groups), _revoked(groups), _relays(groups)))


def check_inventory(path: Path, federation: str) -> None:
    """Check that an inventory is of a federation; one that names no federation is of any.

    Raises:
        FederationError: the file cannot be read, or is not an inventory.
        ExperimentError: it names another federation.
    """
    named = _read(path, lambda groups: str(_variables_of_all(groups).get(FEDERATION_KEY) or federation))
    if named != federation:
        raise ExperimentError(
            f"the federation is {federation!r}, but the inventory {path} is of the federation {named!r}: give "
            f"--federation {named}, or --inventory and --cert of the federation {federation!r}"
        )


def _read(path: Path, pick: Callable[[Any], _Found]) -> _Found:
    """Return what ``pick`` takes from an inventory.

    Raises:
        FederationError: the file cannot be read, or ``pick`` raises an ``ExperimentError``.
    """
    try:
        return pick(load_yaml(read_text(path), str(path), MAX_OWN_CHARACTERS))
    except ExperimentError as error:
        raise FederationError(
            f"the inventory {path} cannot be used: {error}. Correct it, or let `fedquilt provision` write it again"
        ) from None


def _owners(groups: Any) -> Mapping[ClientId, str]:
    owners: dict[ClientId, str] = {}
    for board, text in _hosted(groups):
        for client in parse_clients(text):
            if owners.setdefault(client, board) != board:
                raise ExperimentError(f"client {client} belongs to {owners[client]} and to {board}")
    return owners


def _revoked(groups: Any) -> frozenset[str]:
    names = _variables_of_all(groups).get(REVOKED_KEY, [])
    if not isinstance(names, list):
        raise ExperimentError(f"`{REVOKED_KEY}` has {names!r} where a list of boards belongs")
    return frozenset(map(str, names))


def _relays(groups: Any) -> Mapping[str, str]:
    """Return the site of each relay; an inventory that names none has none."""
    named = _variables_of_all(groups).get(RELAYS_KEY, {})
    return {str(name): str(site) for name, site in _mapping(named, f"`{RELAYS_KEY}`").items()}


def _variables_of_all(groups: Any) -> Mapping[str, Any]:
    everybody = _mapping(_mapping(groups, "the inventory").get("all"), "`all`")
    return _mapping(everybody.get("vars"), "`vars`")


def _hosted(group: Any) -> Iterator[tuple[str, str]]:
    """Yield each board of a group and of the groups in it, with its clients."""
    if not isinstance(group, dict):
        raise ExperimentError("it holds no groups of hosts")
    for name, value in group.items():
        if name == "hosts":
            yield from _clients_of(_mapping(value, "`hosts`"))
        elif name != "vars" and value is not None:
            yield from _hosted(value)


def _clients_of(hosts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for board, value in hosts.items():
        variables = _mapping(value, f"the host {board}")
        if CLIENTS_KEY in variables:
            yield str(board), str(variables[CLIENTS_KEY])


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return a mapping of the inventory; a missing value is an empty one."""
    if value is None or isinstance(value, dict):
        return value or {}
    raise ExperimentError(f"{where} has {value!r} where its variables or hosts belong")
