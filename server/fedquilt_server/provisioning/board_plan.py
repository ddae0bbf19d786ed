"""Check what a new board asks for against a federation's record, and choose what it leaves open. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fedquilt_common.errors import ExperimentError, FederationError, ProtocolError
from fedquilt_common.experiment.agent_config import AgentConfig, describe_mistake, parse_clients
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.rejections import list_problems
from fedquilt_common.wire.topics import RESERVED, SITE_USER, check_name
from fedquilt_server.provisioning.kinds import check_kind, kind_of
from fedquilt_server.provisioning.names import GROUPS, check_host, check_user, hostname_of
from fedquilt_server.provisioning.record import NOT_ISSUED, BoardRecord, FederationRecord

_OURS: Final = frozenset({"broker", "id", "clients", "federation", "kind", "ca", "cert", "key"})
"""Keys of an agent's configuration that are set from the record."""
_METERS: Final = frozenset({"power_command", "power_topic"})
"""Settings of which a board has one at most."""


@dataclass(frozen=True)
class BoardRequest:
    """What the owner asks for a board. An empty text keeps what the board had, or lets fedquilt choose.

    Args:
        name: name of the board.
        kind: kind of the board, such as pi4.
        clients: clients to host, such as 0-3.
        host: address for Ansible.
        user: user for Ansible.
    """

    name: str
    kind: str = ""
    clients: str = ""
    host: str = ""
    user: str = ""


def check_level(name: str, what: str) -> None:
    """Check that a name can be a level of a topic.

    Raises:
        FederationError: it cannot.
    """
    try:
        check_name(name, what)
    except ProtocolError as error:
        raise FederationError(str(error)) from None


def check_request(record: FederationRecord, request: BoardRequest, renew: bool) -> None:
    """Check name, kind, host and user of a board.

    Raises:
        FederationError: one of them cannot be used, or the board needs ``renew``.
    """
    name = request.name
    check_new_name(record, name)
    if request.kind:
        check_kind(request.kind)
    if request.host:
        check_host(request.host, "--host")
    check_user(request.user)
    if renew and name not in record.boards:
        raise FederationError(f"there is no board {name!r} to renew; run the command without --renew")
    before = record.boards.get(name)
    if before is not None and before.revoked is None and not renew:
        raise FederationError(f"{name} already has an identity: use --renew to replace it and withdraw the old one")


def check_new_name(record: FederationRecord, name: str) -> None:
    """Check that a board's name is free as a user, an Ansible host and a host name.

    Raises:
        FederationError: it cannot be a level of a topic, is reserved, makes no host name, or makes that of another
            board.
    """
    check_level(name, "board")
    if name.lower() in (*RESERVED, *GROUPS):
        raise FederationError(f"{name!r} is a reserved name of the broker or of Ansible: choose another name")
    if name.startswith(SITE_USER):
        raise FederationError(f"{name!r}: names that begin with {SITE_USER!r} are those of sites: choose another name")
    if name in record.relays:
        raise FederationError(f"{name!r} is the relay of the site {record.relays[name]!r}: choose another name")
    if not hostname_of(name):
        raise FederationError(f"{name!r}: has no characters for a host name; choose a name with letters or digits")
    alike = [other for other in record.boards if other != name and hostname_of(other) == hostname_of(name)]
    if alike:
        raise FederationError(
            f"{name!r}: its host name would be {hostname_of(name)!r}, the same as that of {', '.join(alike)}: "
            "choose another name"
        )


def complete_request(record: FederationRecord, request: BoardRequest) -> BoardRequest:
    """Return the request with the values that the board had, or that are usual, where it leaves them open.

    Raises:
        FederationError: another board hosts one of the clients.
        ExperimentError: the clients are not a list of clients.
    """
    before = record.boards.get(request.name)
    kind = request.kind or (before.kind if before else "")
    return BoardRequest(
        request.name,
        kind,
        choose_clients(record, request),
        request.host or (before.host if before else f"{hostname_of(request.name)}.local"),
        request.user or (before.user if before else kind_of(kind).user),
    )


def choose_clients(record: FederationRecord, request: BoardRequest) -> str:
    """Return the clients of a board: those that it asks for, those that it had, or the first free one.

    Raises:
        FederationError: another board hosts one of them.
        ExperimentError: the text is not a list of clients.
    """
    name, before = request.name, record.boards.get(request.name)
    taken = {
        client: other
        for other, board in record.boards.items()
        if other != name and board.revoked is None
        for client in parse_clients(board.clients)
    }
    clients = request.clients or (before.clients if before else "")
    if not clients:
        return str(next(number for number in range(len(taken) + 1) if number not in taken))
    for client in parse_clients(clients):
        if client in taken:
            raise FederationError(
                f"{taken[client]} already hosts client {client}: choose other clients for {name} (--clients)"
            )
    return clients


def with_board(record: FederationRecord, request: BoardRequest) -> FederationRecord:
    """Return the record as if the board had its identity, to check further boards against it."""
    planned = complete_request(record, request)
    board = BoardRecord(
        kind=planned.kind, clients=planned.clients, host=planned.host, user=planned.user, **NOT_ISSUED,
    )  # fmt: skip
    return record.model_copy(update={"boards": {**record.boards, planned.name: board}})


def merge_settings(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further keys of a board's ``agent.yaml``: those that are given, and those that it had.

    Args:
        path: the existing file; it may be missing.
        given: values by key, with ``_`` for ``-``. A meter replaces one of another sort.

    Raises:
        ExperimentError: the file is not YAML.
    """
    values = load_yaml(read_text(path), str(path)) if path.exists() else None
    kept = {key.replace("-", "_"): value for key, value in values.items()} if isinstance(values, dict) else {}
    replaced = _OURS | (_METERS if _METERS & given.keys() else set())
    return {**{key: value for key, value in kept.items() if key not in replaced}, **given}


def make_config(record: FederationRecord, request: BoardRequest, settings: dict[str, Any]) -> AgentConfig:
    """Return a board's agent configuration.

    Args:
        record: the federation.
        request: a complete request.
        settings: further keys of ``agent.yaml``; with ``site``, the board connects to the broker of this site.

    Raises:
        ExperimentError: the configuration is not valid.
        FederationError: there is no such site.
    """
    site = settings.get("site") or None
    if site is not None and site not in record.sites:
        names = ", ".join(sorted(record.sites)) or "none yet"
        raise FederationError(
            f"there is no site {site!r} (sites: {names}): create it with `fedquilt federation broker --site {site}`"
        )
    values = {
        "broker": record.url if site is None else record.sites[site].url, "id": request.name,
        "clients": request.clients, "federation": record.name, "kind": request.kind, "ca": "ca.crt", "cert": "tls.crt",
        "key": "tls.key", **settings, "site": site,
    }  # fmt: skip
    try:
        return AgentConfig.model_validate(values)
    except ValidationError as error:
        details = map(describe_mistake, list_problems(error, AgentConfig))
        raise ExperimentError(f"board {request.name}: " + "; ".join(details)) from None
