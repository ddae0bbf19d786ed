"""The boards and clients that a waiting run lacks, each with the command that starts its agent. All are pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedquilt_server.status.problems import natural_key
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.status.units import DASH
from fedquilt_server.status.waiting import ranges


@dataclass(frozen=True)
class MissingBoard:
    """A board that must connect before the run goes on.

    Attributes:
        agent: its name; empty for clients that no known board hosts.
        state: why it is missing, such as "never seen".
        clients: such as "0-3".
        several: whether they are more than one.
        command: starts its agent; empty for a board that somebody has dropped, which must be readmitted.
    """

    agent: str
    state: str
    clients: str
    several: bool
    command: str


def list_missing(snapshot: Snapshot) -> list[MissingBoard]:
    """List the boards that a waiting run lacks, in natural order, and then the clients that no known board hosts."""
    if snapshot.phase != "waiting":
        return []
    gone = sorted((board for board in snapshot.boards if not board.online), key=lambda one: natural_key(one.agent))
    hosted = {client for board in snapshot.boards for client in board.clients}
    return [*_boards(snapshot, gone), *_homeless(snapshot, sorted(set(snapshot.awaited) - hosted))]


def _boards(snapshot: Snapshot, gone: Sequence[BoardStatus]) -> Iterator[MissingBoard]:
    awaited = set(snapshot.awaited)
    for board in gone:
        if board.health == "never seen" or awaited.intersection(board.clients):
            yield _missing(snapshot, board.agent, board.health, board.clients)


def _homeless(snapshot: Snapshot, clients: Sequence[int]) -> Iterator[MissingBoard]:
    if clients:
        yield _missing(snapshot, "", "not hosted by any known board", clients)


def _missing(snapshot: Snapshot, agent: str, state: str, clients: Sequence[int]) -> MissingBoard:
    written = write_clients(clients)
    command = "" if state == "dropped" else agent_command(snapshot, agent or "NAME", written)
    return MissingBoard(agent, state, written, len(clients) > 1, command)


def agent_command(snapshot: Snapshot, agent: str, clients: str) -> str:
    """Return the command that starts an agent, for a shell."""
    connect = snapshot.connect or "--broker mqtt://BROKER"
    return f"fedquilt agent {connect} --id {shlex.quote(agent)} --clients {clients}"


def write_clients(clients: Sequence[int]) -> str:
    """Write clients as the option ``--clients`` reads them: ``0-3,7``."""
    return ranges(clients).replace(", ", ",").replace(DASH, "-") if clients else "CLIENTS"
