"""What the page shows of the clients' privacy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedquilt_server.status.privacy_text import delta_text, describe_central, describe_privacy, epsilon_text
from fedquilt_server.status.results import PrivacySpent
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.status.units import DASH

CLIENTS_SHOWN = 400


@dataclass(frozen=True)
class ClientPrivacy:
    """The privacy of one client.

    Attributes:
        spent: epsilon up to now; a dash for an unknown one.
        budget: the most that it may spend; a dash without local privacy.
        share: spent part of the budget, from 0 to 1.
        declined: why the client does no task any more; empty if it does.
    """

    client: int
    board: str
    spent: str
    budget: str
    share: float
    delta: str
    declined: str


@dataclass(frozen=True)
class PrivacyView:
    """The part of the page about privacy.

    Attributes:
        text: the largest epsilon and the number of clients, and what the coordinator's noise has spent; empty if no
            client has privacy or declines.
        clients: in client order, those that decline before the others.
        more: clients that are not shown.
    """

    text: str
    clients: tuple[ClientPrivacy, ...]
    more: int


def view_privacy(snapshot: Snapshot) -> PrivacyView:
    """Return what the page shows of the privacy of the clients; all empty without privacy."""
    rows = sorted(snapshot.privacy, key=lambda row: (not row.declined, row.client))
    shown = tuple(_view_clients(rows[:CLIENTS_SHOWN], snapshot.boards))
    return PrivacyView(_describe(snapshot), shown, len(rows) - len(shown))


def _describe(snapshot: Snapshot) -> str:
    local, central = describe_privacy(snapshot.privacy), describe_central(snapshot.history)
    has_budgets = any(row.budget is not None for row in snapshot.privacy)
    return "; ".join(filter(None, (central, local, "each client: spent / budget" if has_budgets else "")))


def _view_clients(rows: Sequence[PrivacySpent], boards: Sequence[BoardStatus]) -> Iterator[ClientPrivacy]:
    host_of = {client: board.agent for board in boards for client in board.clients}
    for row in rows:
        yield ClientPrivacy(
            client=row.client,
            board=host_of.get(row.client, DASH),
            spent=epsilon_text(row.epsilon),
            budget=epsilon_text(row.budget),
            share=min(1.0, max(0.0, (row.epsilon or 0.0) / (row.budget or 1.0))),
            delta=delta_text(row.delta),
            declined=row.declined,
        )
