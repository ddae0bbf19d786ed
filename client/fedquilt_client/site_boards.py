"""The boards behind a site as its relay sees them: who hosts which client, and who will not reply.

The first board that claims a client hosts it, as at the coordinator. If the relay's configuration lists the clients of
the boards, no other board can claim them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedquilt_client.tasks import TaskId
from fedquilt_common.errors import PayloadError
from fedquilt_common.flood_control.limits import MOST_AGENTS, MOST_CLAIMS
from fedquilt_common.wire.messages import AgentPresence


@dataclass(frozen=True)
class _Board:
    """The last presence of a board; one that is offline keeps its clients until another board claims them."""

    boot: int
    clients: frozenset[int]
    online: bool = True


class SiteBoards:
    """The boards of one site.

    Args:
        site: its name.
        owners: the board of each client; clients without an entry belong to the first board that claims them. None: all
            are free.
    """

    def __init__(self, site: str, owners: Mapping[int, str] | None = None) -> None:
        self._site = site
        self._owners = owners
        self._boards: dict[str, _Board] = {}
        self._host_of: dict[int, str] = {}

    def __contains__(self, board: str) -> bool:
        """Whether a board is behind the site."""
        return board in self._boards

    @property
    def names(self) -> Iterator[str]:
        """All boards that have connected."""
        return iter(list(self._boards))

    def count_clients(self, board: str) -> int:
        """Return how many clients a board hosts."""
        known = self._boards.get(board)
        return sum(self._host_of.get(client) == board for client in known.clients) if known is not None else 0

    @property
    def clients(self) -> Iterator[int]:
        """All clients that the boards host."""
        return iter(list(self._host_of))

    def host_of(self, client: int) -> str | None:
        """Return the board that hosts a client; None if none does."""
        return self._host_of.get(client)

    def is_online(self, client: int) -> bool:
        """Whether the board that hosts a client is connected."""
        host = self._host_of.get(client)
        return host is not None and self._boards[host].online

    def refusal(self, board: str, client: int) -> str:
        """Return why a board's reply for a client cannot be taken; empty if it can."""
        if self._host_of.get(client) == board:
            return ""
        if board not in self._boards:
            return f"the relay of the site {self._site} has no presence of {board} with `site: {self._site}`"
        if self._owners is not None and self._owners.get(client) != board:
            return f"the relay of the site {self._site} does not have client {client} of {board} in its configuration"
        return f"agent {board} does not host client {client}"

    def take(self, presence: AgentPresence) -> set[int]:
        """Handle a presence; returns the clients that the board hosts from now on.

        Raises:
            PayloadError: there are too many boards, or they claim too many clients.
        """
        before = self._boards.get(presence.agent)
        if presence.online and (presence.site != self._site or presence.site_relay):
            self._forget(presence.agent)
            return set()
        if presence.online:
            return self._arrive(presence, before)
        if before is not None and presence.boot >= before.boot:
            self._boards[presence.agent] = _Board(presence.boot, before.clients, online=False)
            self._move_clients(presence.agent, before.clients)
        return set()

    def _arrive(self, presence: AgentPresence, before: _Board | None) -> set[int]:
        board, owners = presence.agent, self._owners
        claimed = frozenset(c for c in presence.clients if owners is None or owners.get(c) == board)
        self._check_room(board, len(claimed))
        self._boards[board] = _Board(presence.boot, claimed)
        self._move_clients(board, (before.clients if before is not None else frozenset()) - claimed)
        new = {client for client in claimed if self._is_free(client, board)}
        self._host_of.update(dict.fromkeys(sorted(new), board))
        return new

    def _forget(self, board: str) -> None:
        """Forget a board that is at another place now, or a relay."""
        if board in self._boards:
            before, self._boards[board] = self._boards[board], _Board(0, frozenset(), online=False)
            self._move_clients(board, before.clients)
            del self._boards[board]

    def _check_room(self, board: str, claimed: int) -> None:
        others = [known for name, known in self._boards.items() if name != board]
        if len(others) >= MOST_AGENTS or claimed + sum(len(known.clients) for known in others) > MOST_CLAIMS:
            raise PayloadError(
                f"the site {self._site} has more than {MOST_AGENTS} boards or {MOST_CLAIMS} clients: start fewer agents"
            )

    def _is_free(self, client: int, board: str) -> bool:
        """Whether a board may host a client now: nobody does, or only a board that is offline."""
        host = self._host_of.get(client)
        return host is None or (host != board and not self._boards[host].online)

    def _move_clients(self, board: str, clients: frozenset[int]) -> None:
        """Give clients that a board cannot host now to others that claim them and are connected."""
        lost = {client for client in clients if self._host_of.get(client) == board}
        for name, other in self._boards.items():
            if name != board and other.online:
                moved = lost & other.clients
                self._host_of.update(dict.fromkeys(sorted(moved), name))
                lost -= moved
        for client in lost - self._boards[board].clients:
            del self._host_of[client]


class MissingReplies:
    """Tasks to which no reply will come: the client has failed, or its board is not connected.

    Args:
        boards: of the site.
    """

    def __init__(self, boards: SiteBoards) -> None:
        self._boards = boards
        self._failed: set[TaskId] = set()

    def __contains__(self, task: object) -> bool:
        return task in self._failed or (isinstance(task, tuple) and not self._boards.is_online(task[0]))

    def add(self, task: TaskId) -> None:
        """Note that a board has reported a failure."""
        self._failed.add(task)

    def discard(self, task: TaskId) -> None:
        """Note that a reply has come after all."""
        self._failed.discard(task)

    def clear(self) -> None:
        """Forget the failures; boards retry with each manifest."""
        self._failed.clear()
