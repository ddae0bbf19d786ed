"""The Ansible inventory of a federation: where its boards are, and what each is."""

from __future__ import annotations

from typing import Any

from fedquilt_common.files.yaml_text import dump_yaml_1_1
from fedquilt_server.provisioning.kinds import kind_of
from fedquilt_server.provisioning.record import Board, Record

_HEAD = "# Written by fedquilt; what is yours belongs into group_vars/ and host_vars/ beside it.\n"
_HERE = {"localhost": {"ansible_connection": "local"}}


def inventory(record: Record) -> str:
    """YAML. Boards that have been revoked are left out; Jetsons are in a group of their own, too."""
    there = {name: board for name, board in sorted(record.boards.items()) if board.revoked is None}
    agents: dict[str, Any] = {"hosts": {name: _variables(board) for name, board in there.items()}}
    jetsons = {name: None for name, board in there.items() if kind_of(board.kind).jetson}
    children: dict[str, Any] = {"broker": {"hosts": _HERE}, "coordinator": {"hosts": _HERE}, "agents": agents}
    if jetsons:
        children["jetsons"] = {"hosts": jetsons}
    shared = {"fedquilt_federation": record.name, "fedquilt_broker": record.url}
    return _HEAD + dump_yaml_1_1({"all": {"vars": shared, "children": children}})


def _variables(board: Board) -> dict[str, Any]:
    login = {"ansible_user": board.user} if board.user else {}
    return {"ansible_host": board.host, **login, "fedquilt_kind": board.kind, "fedquilt_clients": board.clients}
