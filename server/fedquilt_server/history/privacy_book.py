"""What clients with differential privacy have spent, and which of them decline, from the journal's events. Pure."""

from __future__ import annotations

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.types import ClientId
from fedquilt_server.round.events import Event, Joined, Rejected, Replied
from fedquilt_server.status.results import PrivacySpent
from fedquilt_server.status.snapshot import CLIENT_DECLINES, CLIENT_FAILED


class PrivacyBook:
    """Follows the events of a run.

    Attributes:
        spent: the largest epsilon that each client named in a reply; what is spent never falls.
        declined: the reason of each client that declines. A client whose agent joins again is asked again.
    """

    def __init__(self) -> None:
        self.spent = dict[ClientId, float]()
        self.declined = dict[ClientId, str]()

    def take(self, event: Event) -> None:
        """Take the next event of the journal."""
        match event:
            case Replied() if "epsilon" in event.metrics:
                self.spent[event.client] = max(event.metrics["epsilon"], self.spent.get(event.client, 0.0))
            case Rejected(declined=True) if event.client is not None:
                reason = event.reason.removeprefix(CLIENT_FAILED).removeprefix(CLIENT_DECLINES)
                self.declined[event.client] = reason
            case Joined():
                for client in event.clients:
                    self.declined.pop(client, None)


def privacy_rows(experiment: Experiment, book: PrivacyBook) -> list[PrivacySpent]:
    """Return a row for each client that trains with local differential privacy or declines, in client order."""
    sections = dict(experiment.private_clients())
    shown = sorted(sections.keys() | book.declined.keys())
    return [_privacy_row(client, sections.get(client), book) for client in shown]


def _privacy_row(client: ClientId, section: Privacy | None, book: PrivacyBook) -> PrivacySpent:
    return PrivacySpent(
        client=client,
        epsilon=book.spent.get(client),
        budget=section.epsilon if section is not None else None,
        delta=section.delta if section is not None else None,
        declined=book.declined.get(client, ""),
    )
