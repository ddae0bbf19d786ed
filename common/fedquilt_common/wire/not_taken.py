"""Why a relay or the coordinator does not take a reply."""

from __future__ import annotations

from fedquilt_common.wire.messages import Outcome


class NotTakenError(Exception):
    """A reply that is not taken, for a reason; its sender learns the outcome.

    Attributes:
        outcome: what the sender learns.
        final: False if the same reply may be taken later.
    """

    def __init__(self, outcome: Outcome, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.final = final
