"""What the machine calls outside of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.types import Arrays, ClientId, ExchangeId, Profile
from fedquilt_server.round.events import Replied


class ContextFactory(Protocol):
    """Makes the context of a round."""

    def __call__(
        self,
        round: int,
        fleet: Mapping[ClientId, Profile],
        opened: float = ...,
        working: Mapping[ClientId, ExchangeId] = ...,
        /,
    ) -> ServerContext:
        """Return the context.

        Args:
            round: the round's number.
            fleet: the clients that may be asked.
            opened: Unix time in seconds at which the round opens.
            working: the clients that still work on a task of an earlier round.
        """


Load = Callable[[Sequence[Replied]], Sequence[Arrays]]
"""Returns the arrays of accepted replies, in their order."""
