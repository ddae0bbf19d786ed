"""What the machine calls outside of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedquilt_common.algorithm_api import ServerContext
from fedquilt_common.types import Arrays, ClientId, Profile
from fedquilt_server.round.events import Replied

ContextFactory = Callable[[int, Mapping[ClientId, Profile], float], ServerContext]
"""Makes the context of a round from its number, the connected clients and the Unix time at which it opens."""
Load = Callable[[Sequence[Replied]], Sequence[Arrays]]
"""Returns the arrays of accepted replies, in their order."""
